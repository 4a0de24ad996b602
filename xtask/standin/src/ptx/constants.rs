//! Constants in PTX: integers of four radices, and the bits of floats.

/// Returns the bits of a constant; `None` for other text.
///
/// Integers are decimal, `0x` hexadecimal, `0b` binary or `0` octal, with `-` in front or `U` behind; floats are `0f` and 8 or
/// `0d` and 16 hexadecimal digits (PTX ISA, 4.5).
pub(crate) fn bits(text: &str) -> Option<u64> {
    let begins = |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| text.strip_prefix(prefix));
    if let Some(digits) = begins(["0f", "0F"]) {
        return if digits.len() == 8 { u32::from_str_radix(digits, 16).ok().map(u64::from) } else { None };
    }
    if let Some(digits) = begins(["0d", "0D"]) {
        return if digits.len() == 16 { u64::from_str_radix(digits, 16).ok() } else { None };
    }
    match text.strip_prefix('-') {
        Some(rest) => unsigned(rest).map(u64::wrapping_neg),
        None => unsigned(text),
    }
}

fn unsigned(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', b'b' | b'B', ..] => (&text[2..], 2),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // `from_str_radix` takes signs, too.
    if digits.starts_with(['+', '-']) { None } else { u64::from_str_radix(digits, radix).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_have_the_radix_of_their_prefix() {
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("10U", 10),
            ("-1", u64::MAX),
            ("0x1F", 31),
            ("0XffU", 255),
            ("-0x10", 0xFFFF_FFFF_FFFF_FFF0),
            ("0b101", 5),
            ("017", 15),
            ("18446744073709551615", u64::MAX),
            ("-9223372036854775808", 1 << 63),
            ("0f3F800000", 0x3F80_0000),
            ("0D3FF0000000000000", 0x3FF0_0000_0000_0000),
        ] {
            assert_eq!(bits(text), Some(value), "{text}");
        }
        for text in ["", "-", "0x", "0xG", "08", "0b2", "1.5", "--1", "0x-1", "0f3F8000", "0d3FF0", "%r1", "18446744073709551616"]
        {
            assert_eq!(bits(text), None, "{text}");
        }
    }
}
