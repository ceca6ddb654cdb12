//! Names of the folders with the files: `..2026_11_30_22_06_47.<suffix>`, in UTC.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// The name for that time. Of several at one time each has a number of its own.
pub(super) fn name(now: SystemTime, number: u32) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let suffix = since.subsec_nanos().wrapping_add(number);
    format!("..{year:04}_{month:02}_{day:02}_{hour:02}_{minute:02}_{second:02}.{suffix}")
}

/// Whether a folder may be one of these, also if another agent made it.
pub(super) fn is_name(name: &OsStr) -> bool {
    const PATTERN: &[u8] = b"..0000_00_00_00_00_00.";
    let name = name.as_bytes();
    let fits = |(byte, pattern): (&u8, &u8)| match pattern {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    };
    name.len() > PATTERN.len() && !name.contains(&b'/') && name.iter().zip(PATTERN).all(fits)
}

/// Year, month and day of a number of days since 1970, of the Gregorian calendar. Counts from March, so that the day that
/// some years have more is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::time::{Duration, UNIX_EPOCH};

    use super::{is_name, name};

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, written) in [
            (0, "..1970_01_01_00_00_00.0"),
            (951_782_399, "..2000_02_28_23_59_59.0"),
            (951_827_696, "..2000_02_29_12_34_56.0"),
            (4_107_542_400, "..2100_03_01_00_00_00.0"),
            (1_796_076_407, "..2026_11_30_22_06_47.0"),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(name(now, 0), written);
            assert!(is_name(OsStr::new(written)));
            assert_ne!(name(now, 1), written);
        }
    }

    #[test]
    fn other_names_are_not_taken_for_one() {
        for other in [
            "..data",
            "..data_tmp",
            "..2026_11_30",
            "2026",
            "..2026_11_30_22_06_47.",
            "..2026_11_30_22_06_47.1/x",
        ] {
            assert!(!is_name(OsStr::new(other)), "{other}");
        }
    }
}
