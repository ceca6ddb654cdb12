//! Durations as Go writes them, since messages of the kubelet carry them.

use std::time::Duration;

/// A duration in the text form of Go: `0s`, `1.5µs`, `100ms`, `10s`, `1m20s`, `5m0s`, `1h0m0.5s`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => with_fraction(nanos, 1_000, "µs"),
        1_000_000..1_000_000_000 => with_fraction(nanos, 1_000_000, "ms"),
        _ => {
            let minutes = duration.as_secs() / 60;
            let within_minute =
                u128::from(duration.as_secs() % 60) * 1_000_000_000 + u128::from(duration.subsec_nanos());
            let seconds = with_fraction(within_minute, 1_000_000_000, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

/// `nanos` in a unit of so many nanoseconds, without zeros at the end of the fraction.
fn with_fraction(nanos: u128, unit: u128, suffix: &str) -> String {
    let (whole, rest) = (nanos / unit, nanos % unit);
    if rest == 0 {
        return format!("{whole}{suffix}");
    }
    // The unit plus the rest, without the leading 1, is the rest with its leading zeros.
    let digits = (unit + rest).to_string();
    format!("{whole}.{}{suffix}", digits[1..].trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::{prop_assert_eq, proptest};

    use super::go_duration;

    #[test]
    fn durations_are_written_as_go_does() {
        for (duration, text) in [
            (Duration::ZERO, "0s"),
            (Duration::from_nanos(1), "1ns"),
            (Duration::from_nanos(1_100), "1.1µs"),
            (Duration::from_micros(2_200), "2.2ms"),
            (Duration::from_millis(100), "100ms"),
            (Duration::from_millis(1_500), "1.5s"),
            (Duration::from_millis(3_050), "3.05s"),
            (Duration::from_secs(10), "10s"),
            (Duration::from_secs(80), "1m20s"),
            (Duration::from_secs(160), "2m40s"),
            (Duration::from_secs(300), "5m0s"),
            (Duration::from_millis(3_600_500), "1h0m0.5s"),
            (Duration::from_secs(100 * 3600), "100h0m0s"),
            (Duration::from_nanos(i64::MAX as u64), "2562047h47m16.854775807s"),
        ] {
            assert_eq!(go_duration(duration), text);
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost(secs in 0..200_000u64, nanos in 0..1_000_000_000u32) {
            let duration = Duration::new(secs, nanos);
            prop_assert_eq!(read(&go_duration(duration)), duration.as_nanos());
        }
    }

    /// Reads the text form back, in nanoseconds.
    fn read(text: &str) -> u128 {
        let mut rest = text;
        let mut total = 0;
        while !rest.is_empty() {
            let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap();
            let end = rest[number..]
                .find(|c: char| c.is_ascii_digit())
                .map_or(rest.len(), |i| number + i);
            let unit: u128 = match &rest[number..end] {
                "h" => 3_600_000_000_000,
                "m" => 60_000_000_000,
                "s" => 1_000_000_000,
                "ms" => 1_000_000,
                "µs" => 1_000,
                _ => 1,
            };
            let (whole, fraction) = rest[..number].split_once('.').unwrap_or((&rest[..number], ""));
            total += whole.parse::<u128>().unwrap() * unit;
            if !fraction.is_empty() {
                total += fraction.parse::<u128>().unwrap() * unit / 10u128.pow(fraction.len() as u32);
            }
            rest = &rest[end..];
        }
        total
    }
}
