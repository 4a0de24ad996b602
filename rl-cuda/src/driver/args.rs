//! Arguments of kernels.

use std::ffi::c_void;

/// Kernel arguments, copied.
///
/// Each is a 32-bit value or a struct of such values, aligned to 8 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Args {
    words: [u64; 40],
    starts: [u8; 12],
    /// 32-bit words of each argument.
    #[cfg(test)]
    lens: [u8; 12],
    pub(crate) len: usize,
    used: usize,
}

impl Args {
    pub(crate) fn new() -> Self {
        Self {
            words: [0; 40],
            starts: [0; 12],
            #[cfg(test)]
            lens: [0; 12],
            len: 0,
            used: 0,
        }
    }

    /// Appends an argument, given as 32-bit words, low word first.
    pub(crate) fn push(mut self, words: &[u32]) -> Self {
        self.starts[self.len] = self.used as u8;
        #[cfg(test)]
        {
            self.lens[self.len] = words.len() as u8;
        }
        self.len += 1;
        for pair in words.chunks(2) {
            self.words[self.used] = pair.iter().rev().fold(0, |word, &half| word << 32 | u64::from(half));
            self.used += 1;
        }
        self
    }

    /// Returns the bytes of each argument.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.lens[..self.len].iter().map(|&words| 4 * usize::from(words)).collect()
    }

    /// Returns the addresses of the arguments.
    pub(crate) fn pointers(&mut self) -> [*mut c_void; 12] {
        let mut pointers = [std::ptr::null_mut(); 12];
        for (pointer, &start) in pointers.iter_mut().zip(&self.starts[..self.len]) {
            *pointer = (&raw mut self.words[usize::from(start)]).cast();
        }
        pointers
    }
}

/// An argument of a kernel.
pub(crate) trait Argument {
    fn push_to(&self, args: Args) -> Args;
}

/// Implements [`Argument`] for a type, by what it appends.
macro_rules! arguments {
    ($([$($generics:tt)*] $argument:ty: |$value:ident, $args:ident| $pushed:expr;)+) => {$(
        impl<$($generics)*> $crate::driver::args::Argument for $argument {
            fn push_to(&self, $args: $crate::driver::args::Args) -> $crate::driver::args::Args {
                let $value = self;
                $pushed
            }
        }
    )+};
}
pub(crate) use arguments;

arguments! {
    [A: Argument + ?Sized] &A: |value, args| (**value).push_to(args);
    [A: Argument + ?Sized] &mut A: |value, args| (**value).push_to(args);
    [] u64: |number, args| args.push(&long(*number));
    [] u32: |number, args| args.push(&[*number]);
    [] f32: |number, args| args.push(&[number.to_bits()]);
    [] [u32]: |words, args| args.push(words);
    [const N: usize] [u32; N]: |words, args| args.push(words);
    [const N: usize] [u64; N]: |words, args| args.push(words.map(long).as_flattened());
}

/// The arguments of a kernel, in its order; after a semicolon, more of them.
macro_rules! args {
    ($($argument:expr),+ $(,)?) => {
        args![$crate::driver::args::Args::new(); $($argument),+]
    };
    ($args:expr; $($argument:expr),+ $(,)?) => {{
        let args = $args;
        $(let args = $crate::driver::args::Argument::push_to(&$argument, args);)+
        args
    }};
}
pub(crate) use args;

/// Splits 64 bits into two words, low word first.
pub(crate) fn long(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

#[cfg(test)]
mod tests {
    #[test]
    fn arguments_lie_as_the_kernel_reads_them() {
        let mut args = args![[1u32, 2, 3], 0x0123_4567_89AB_CDEF_u64, 7u32];
        assert_eq!(args.words[..4], [0x2_0000_0001, 3, 0x0123_4567_89AB_CDEF, 7]);
        assert_eq!((&args.starts[..args.len], args.used), (&[0, 2, 3][..], 4));
        assert!(args.pointers()[..3].iter().all(|pointer| !pointer.is_null()));
    }
}
