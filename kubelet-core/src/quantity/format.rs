//! The canonical text of an amount.

use super::{NANOS, QuantityFormat};

const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

pub(super) fn canonical(nanos: i128, format: QuantityFormat) -> String {
    match format {
        QuantityFormat::DecimalSi => decimal(nanos),
        QuantityFormat::DecimalExponent => exponent(nanos),
        // A small or broken amount has no form in powers of 1024.
        QuantityFormat::BinarySi if nanos % NANOS != 0 || (nanos / NANOS).abs() < 1024 => decimal(nanos),
        QuantityFormat::BinarySi => binary(nanos / NANOS),
    }
}

fn decimal(nanos: i128) -> String {
    // Held at the largest suffix there is, so that the text still means the amount.
    let (digits, steps) = divide_out(nanos, 1000, DECIMAL_SUFFIXES.len() - 1);
    match nanos {
        0 => "0".to_owned(),
        _ => format!("{digits}{}", DECIMAL_SUFFIXES[steps]),
    }
}

fn exponent(nanos: i128) -> String {
    let (digits, steps) = divide_out(nanos, 1000, usize::MAX);
    match (nanos, steps) {
        (0, _) => "0".to_owned(),
        (_, 3) => digits.to_string(),
        (_, 0..3) => format!("{digits}e-{}", 9 - 3 * steps),
        (_, 4..) => format!("{digits}e{}", 3 * steps - 9),
    }
}

fn binary(units: i128) -> String {
    let (digits, steps) = divide_out(units, 1024, BINARY_SUFFIXES.len() - 1);
    format!("{digits}{}", BINARY_SUFFIXES[steps])
}

/// Divides by `base` as long as nothing is lost, at most `limit` times.
fn divide_out(mut amount: i128, base: i128, limit: usize) -> (i128, usize) {
    let mut steps = 0;
    while steps < limit && amount != 0 && amount % base == 0 {
        amount /= base;
        steps += 1;
    }
    (amount, steps)
}
