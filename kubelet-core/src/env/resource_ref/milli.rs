//! Quantities in thousandths.

/// Divides, rounding up.
pub(super) fn divided_up(amount: i128, divisor: i128) -> i128 {
    -(-amount).div_euclid(divisor)
}

/// Reads a quantity in thousandths, rounded up.
pub(super) fn parse_milli(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    // A second dot is no digit, and so is refused here.
    let digits: i128 = if fraction.is_empty() && whole.is_empty() {
        0
    } else {
        format!("{whole}{fraction}").parse().ok()?
    };
    let (base, exponent) = scale(suffix)?;
    let power = |exponent: u32| i128::from(base).checked_pow(exponent);
    let mut numerator = digits.checked_mul(1000)?;
    let mut denominator = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    if exponent < 0 {
        denominator = denominator.checked_mul(power(exponent.unsigned_abs())?)?;
    } else {
        numerator = numerator.checked_mul(power(exponent.unsigned_abs())?)?;
    }
    let signed = if negative { -numerator } else { numerator };
    Some(divided_up(signed, denominator))
}

/// The base and exponent a suffix stands for.
fn scale(suffix: &str) -> Option<(u16, i32)> {
    Some(match suffix {
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "" => (10, 0),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        "Ei" => (1024, 6),
        _ => (10, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert_eq, proptest};

    use super::parse_milli;

    #[test]
    fn quantities_are_read_exactly() {
        for (text, milli) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("1.", Some(1000)),
            (".5", Some(500)),
            ("+0.5", Some(500)),
            ("-1.5", Some(-1500)),
            ("0.0001", Some(1)),
            ("-0.0001", Some(0)),
            ("1.5Ki", Some(1_536_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("1E3", Some(1_000_000)),
            ("12e-1", Some(1200)),
            ("1n", Some(1)),
            ("8Ei", Some(9_223_372_036_854_775_808_000)),
            (".0", Some(0)),
            ("", None),
            (".", None),
            ("-", None),
            ("1.2.3", None),
            ("1 ", None),
            ("1mi", None),
            ("1KiB", None),
            ("+-1", None),
            ("é", None),
        ] {
            assert_eq!(parse_milli(text), milli, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+]?[0-9.]{0,50}(\\PC|[eE][-+]?[0-9]{0,12}|Ei){0,2}") {
            let _ = parse_milli(&text);
        }

        #[test]
        fn whole_numbers_are_themselves(number: i64) {
            prop_assert_eq!(parse_milli(&number.to_string()), Some(i128::from(number) * 1000));
        }
    }
}
