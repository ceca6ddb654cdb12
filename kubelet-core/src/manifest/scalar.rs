//! What an unquoted YAML 1.1 scalar means.
//!
//! Source: kubelet 1.36 reads manifests through sigs.k8s.io/yaml, whose resolver is that of go-yaml v2.

use super::node::Value;

/// Resolves a plain scalar without a tag.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN, text.into()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Value::Float(f64::INFINITY, text.into());
        }
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY, text.into()),
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        return Value::Text(text.into());
    }
    // Underscores may group digits anywhere after the first character.
    let digits = text.replace('_', "");
    if let Some(value) = integer(&digits) {
        return Value::Int(value);
    }
    match float(&digits) {
        Some(value) => Value::Float(value, digits.into()),
        None => Value::Text(text.into()),
    }
}

/// Any base, by prefix; a bare leading zero means octal. Only what fits 64 bits, signed or not, is an integer.
fn integer(text: &str) -> Option<i128> {
    let (negative, magnitude) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let (digits, radix) = match magnitude.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&magnitude[2..], 16),
        [b'0', b'o' | b'O', ..] => (&magnitude[2..], 8),
        [b'0', b'b' | b'B', ..] => (&magnitude[2..], 2),
        [b'0', _, ..] => (&magnitude[1..], 8),
        _ => (magnitude, 10),
    };
    // `from_str_radix` would take a second sign.
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    let value = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let value = if negative { -value } else { value };
    (value >= i128::from(i64::MIN)).then_some(value)
}

/// Decimal floats only: Rust would also take `inf`, `nan` and `infinity`.
fn float(text: &str) -> Option<f64> {
    let mantissa = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut digits = false;
    let plausible = mantissa.chars().all(|c| {
        digits |= c.is_ascii_digit();
        c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-')
    });
    if plausible && digits && !mantissa.starts_with(['e', 'E']) {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::resolve;
    use crate::manifest::node::Value;

    fn shown(text: &str) -> String {
        match resolve(text) {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => format!("bool {value}"),
            Value::Int(value) => format!("int {value}"),
            Value::Float(value, text) => format!("float {value} {text}"),
            Value::Text(text) => format!("text {text}"),
            Value::Seq(_) | Value::Map(_) => "collection".to_owned(),
        }
    }

    #[test]
    fn plain_scalars_mean_what_yaml_1_1_says() {
        for (text, want) in [
            ("", "null"),
            ("~", "null"),
            ("NULL", "null"),
            ("yes", "bool true"),
            ("y", "bool true"),
            ("On", "bool true"),
            ("off", "bool false"),
            ("oN", "text oN"),
            ("80", "int 80"),
            ("+80", "int 80"),
            ("-80", "int -80"),
            ("0", "int 0"),
            ("0644", "int 420"),
            ("0o644", "int 420"),
            ("0x1A4", "int 420"),
            ("0b11", "int 3"),
            ("-0x10", "int -16"),
            ("1_000", "int 1000"),
            ("_1", "text _1"),
            ("089", "float 89 089"),
            ("5.0", "float 5 5.0"),
            (".5", "float 0.5 .5"),
            ("1e3", "float 1000 1e3"),
            ("18446744073709551615", "int 18446744073709551615"),
            (
                "18446744073709551616",
                "float 18446744073709552000 18446744073709551616",
            ),
            (
                "-9223372036854775809",
                "float -9223372036854776000 -9223372036854775809",
            ),
            ("1.2.3", "text 1.2.3"),
            ("1:30", "text 1:30"),
            ("2024-01-01", "text 2024-01-01"),
            ("-", "text -"),
            ("+-5", "text +-5"),
            ("0x", "text 0x"),
            ("0x-5", "text 0x-5"),
            (".", "text ."),
            ("...", "text ..."),
            ("-inf", "text -inf"),
            ("100m", "text 100m"),
            ("1Gi", "text 1Gi"),
            ("1e", "text 1e"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
    }
}
