//! Signals: INT, TERM, HUP and USR1 ask the run to save and stop.
//!
//! A verb with nothing to save yet ends at once. So does every program at a second signal, unless it comes within a second of the
//! first: wrappers pass on what the whole group of processes gets as well.
//!
//! TSTP, as by Ctrl-Z, stops the program outside of the terminal's alternate screen. A HUP or TSTP that the program was started
//! to ignore, as by `nohup`, stays ignored; Linux reports that in /proc, elsewhere both are always handled. XFSZ is an error of
//! the write that caused it. All other signals keep their defaults.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{interrupt, print};

/// Exit code after a second signal: nothing saved since the last checkpoint.
#[cfg(unix)]
pub(crate) const EXIT_CODE_AT_ONCE: u8 = 131;

/// Time in which signals count as one.
#[cfg(unix)]
const ONE: std::time::Duration = std::time::Duration::from_secs(1);

/// Removal of what a verb has written before it can save.
type Undo = Box<dyn FnOnce() + Send>;

/// Removal before the first signal ends the program; `None` if it asks to save.
static UNDO: Mutex<Option<Undo>> = Mutex::new(None);

fn undo() -> MutexGuard<'static, Option<Undo>> {
    UNDO.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the first signal ask to save, from now on.
pub(crate) fn listen() {
    *undo() = None;
}

/// Lets the first signal end the program after `remove`, until [`listen`].
pub(crate) fn end_at_once(remove: impl FnOnce() + Send + 'static) {
    *undo() = Some(Box::new(remove));
}

/// Lets the first signal end the program while `wait` waits for the user.
pub(crate) fn while_waiting<R>(wait: impl FnOnce() -> R) -> R {
    let before = undo().replace(Box::new(|| ()));
    let answer = wait();
    *undo() = before;
    answer
}

/// Starts to handle signals; the first ends the program until [`listen`].
///
/// `restore` restores a terminal; the program calls it before it ends at once, for QUIT too, and before it is stopped. `reopen`
/// is called when it continues.
///
/// # Errors
/// The operating system's message.
#[cfg(unix)]
pub(crate) fn start(restore: fn(), reopen: fn()) -> Result<(), String> {
    use std::sync::Arc;
    use std::time::Instant;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGXFSZ};
    let always = [SIGINT, SIGTERM, SIGUSR1, SIGQUIT];
    let listened = always.into_iter().chain([SIGHUP, SIGTSTP].into_iter().filter(|&signal| !ignored(signal)));
    let mut signals = signal_hook::iterator::Signals::new(listened).map_err(|error| error.to_string())?;
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(|error| error.to_string())?;
    end_at_once(|| ());
    let work = move || {
        let mut first = None;
        for signal in signals.forever() {
            if signal == SIGQUIT {
                apart(restore);
                let _ = signal_hook::low_level::emulate_default_handler(SIGQUIT);
            }
            if signal == SIGTSTP {
                apart(restore);
                // Returns when the program continues.
                let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
                apart(reopen);
                continue;
            }
            // Locked to the end, so that the verb cannot begin meanwhile.
            let mut undo = undo();
            if let Some(remove) = undo.take() {
                remove();
                leave(restore, "interrupted: nothing is kept", interrupt::EXIT_CODE);
            }
            interrupt::request();
            if first.get_or_insert_with(Instant::now).elapsed() >= ONE {
                let told = "interrupted twice, ended at once: nothing was saved since the last checkpoint";
                leave(restore, told, EXIT_CODE_AT_ONCE);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(work).map(drop).map_err(|error| error.to_string())
}

/// Starts to handle signals, where the system can.
///
/// # Errors
/// Always, with a message.
#[cfg(not(unix))]
pub(crate) fn start(_restore: fn(), _reopen: fn()) -> Result<(), String> {
    Err("signals are handled on Unix only".into())
}

/// Ends the program.
#[cfg(unix)]
fn leave(restore: fn(), told: &'static str, code: u8) -> ! {
    apart(move || {
        restore();
        print::err(told);
    });
    std::process::exit(code.into())
}

/// Prints on a separate thread, and waits for at most a second.
///
/// A pipe or terminal that accepts no more output must not block the exit.
#[cfg(unix)]
fn apart(print: impl FnOnce() + Send + 'static) {
    let (done, printed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        print();
        let _ = done.send(());
    });
    let _ = printed.recv_timeout(std::time::Duration::from_secs(1));
}

/// True if the program was started to ignore the signal.
#[cfg(unix)]
fn ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
