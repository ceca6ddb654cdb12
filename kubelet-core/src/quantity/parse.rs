//! Text to amount.

use std::str::FromStr;

use super::{NANOS, Quantity, QuantityFormat};

/// The most an amount in powers of 1024 can be; more is cut to it. Decimal amounts are not cut.
const BINARY_CAP: i128 = i64::MAX as i128 * NANOS;
/// The decimal digits that always fit the kept-text rule.
const KEPT_DIGITS: usize = 18;

/// Why a text is no [`Quantity`]. The person who wrote it has to change it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseQuantityError {
    /// Not a number followed by a suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Shape,
    /// What follows the number is no known suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
    /// The amount is larger than any real one: about 1.7 × 10^29 either way.
    #[error("quantity is out of range")]
    Range,
}

#[derive(Clone, Copy)]
enum Scale {
    Ten(QuantityFormat, i64),
    Two(u32),
}

/// A text cut into its parts. Leading zeros of `whole` are gone.
struct Parts<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = split(text)?;
        let scale = scale(parts.suffix)?;
        let (magnitude, format, keep) = match scale {
            Scale::Ten(format, power) => (decimal(&parts, power)?, format, keeps_decimal(&parts, power)),
            Scale::Two(power) => (
                binary(&parts, power),
                QuantityFormat::BinarySi,
                keeps_binary(&parts, power),
            ),
        };
        let nanos = if parts.negative { -magnitude } else { magnitude };
        let text = keep.then(|| Box::from(text));
        Ok(Self { nanos, format, text })
    }
}

fn split(text: &str) -> Result<Parts<'_>, ParseQuantityError> {
    if text.is_empty() {
        return Err(ParseQuantityError::Shape);
    }
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, rest) = take(rest, |c| c.is_ascii_digit());
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => take(rest, |c| c.is_ascii_digit()),
        None => ("", rest),
    };
    let (_, rest) = take(suffix, |c| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    let (_, rest) = take(rest, |c| c.is_ascii_digit());
    if !rest.is_empty() {
        return Err(ParseQuantityError::Shape);
    }
    Ok(Parts {
        negative,
        whole: whole.trim_start_matches('0'),
        fraction,
        suffix,
    })
}

fn take(text: &str, wanted: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !wanted(c)).unwrap_or(text.len());
    text.split_at(end)
}

fn scale(suffix: &str) -> Result<Scale, ParseQuantityError> {
    let si = |power| Ok(Scale::Ten(QuantityFormat::DecimalSi, power));
    match suffix {
        "n" => si(-9),
        "u" => si(-6),
        "m" => si(-3),
        "" => si(0),
        "k" => si(3),
        "M" => si(6),
        "G" => si(9),
        "T" => si(12),
        "P" => si(15),
        "E" => si(18),
        "Ki" => Ok(Scale::Two(10)),
        "Mi" => Ok(Scale::Two(20)),
        "Gi" => Ok(Scale::Two(30)),
        "Ti" => Ok(Scale::Two(40)),
        "Pi" => Ok(Scale::Two(50)),
        "Ei" => Ok(Scale::Two(60)),
        _ => {
            let power = suffix
                .strip_prefix(['e', 'E'])
                .and_then(|power| power.parse().ok())
                .ok_or(ParseQuantityError::Suffix)?;
            Ok(Scale::Ten(QuantityFormat::DecimalExponent, power))
        }
    }
}

/// Nano units of digits times a power of ten, rounded up.
fn decimal(parts: &Parts<'_>, power: i64) -> Result<i128, ParseQuantityError> {
    let digits = [parts.whole, parts.fraction].concat();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    let fraction = i64::try_from(parts.fraction.len()).unwrap_or(i64::MAX);
    let shift = power.saturating_add(9).saturating_sub(fraction);
    let (kept, cut, zeros) = match usize::try_from(shift) {
        Ok(zeros) => (digits, "", zeros),
        Err(_) => {
            let cut = usize::try_from(shift.unsigned_abs()).unwrap_or(usize::MAX);
            let (kept, cut) = digits.split_at(digits.len().saturating_sub(cut));
            (kept, cut, 0)
        }
    };
    // Checked before a power is taken, so that a huge exponent costs nothing.
    if kept.len().saturating_add(zeros) > 39 {
        return Err(ParseQuantityError::Range);
    }
    let nanos = read(kept)
        .and_then(|nanos| nanos.checked_mul(10_i128.checked_pow(u32::try_from(zeros).ok()?)?))
        .and_then(|nanos| nanos.checked_add(i128::from(cut.bytes().any(|b| b != b'0'))));
    nanos.ok_or(ParseQuantityError::Range)
}

/// Nano units of digits times a power of two, rounded up and cut to the cap.
fn binary(parts: &Parts<'_>, power: u32) -> i128 {
    let unit = NANOS << power;
    // From the last digit to the first: dividing by ten loses only what `inexact` remembers, so that the sum is exact.
    let mut fraction = 0;
    let mut inexact = false;
    for digit in parts.fraction.bytes().rev() {
        let sum = i128::from(digit - b'0') * unit + fraction;
        inexact |= sum % 10 != 0;
        fraction = sum / 10;
    }
    read(parts.whole)
        .and_then(|whole| whole.checked_mul(unit))
        .and_then(|whole| whole.checked_add(fraction + i128::from(inexact)))
        .map_or(BINARY_CAP, |nanos| nanos.min(BINARY_CAP))
}

/// Digits as a number; no digits are zero.
fn read(digits: &str) -> Option<i128> {
    if digits.is_empty() {
        Some(0)
    } else {
        digits.parse().ok()
    }
}

/// Whether upstream prints this decimal text again as it was written.
fn keeps_decimal(parts: &Parts<'_>, power: i64) -> bool {
    let length = parts.whole.len() + parts.fraction.len();
    if length > KEPT_DIGITS {
        return false;
    }
    let whole = if parts.whole.is_empty() { "0" } else { parts.whole };
    let digits = [whole, parts.fraction].concat();
    let last = power.saturating_sub(i64::try_from(parts.fraction.len()).unwrap_or(i64::MAX));
    last % 3 == 0 && last >= -9 && !digits.ends_with("000") && !digits.starts_with('0')
}

/// Whether upstream prints this text in powers of 1024 again as it was written.
fn keeps_binary(parts: &Parts<'_>, power: u32) -> bool {
    let longest = match power {
        10 => 11,
        20 => 8,
        30 => 5,
        40 => 2,
        _ => 0,
    };
    parts.fraction.is_empty() && parts.whole.len() <= longest && read(parts.whole).is_some_and(|whole| whole % 8 != 0)
}
