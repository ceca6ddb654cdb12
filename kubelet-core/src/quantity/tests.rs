use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::{ApiQuantity, ParseQuantityError, Quantity, QuantityFormat};

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

const MAX: i64 = i64::MAX;
const MIN: i64 = i64::MIN;

/// Text read, text printed, value, milli value. Where upstream's integers wrap, ours are held at their end.
#[rustfmt::skip]
const TABLE: &[(&str, &str, i64, i64)] = &[
    ("0Ki", "0", 0, 0), ("m", "0", 0, 0), (".", "0", 0, 0), ("Ki", "0", 0, 0), ("k", "0", 0, 0), ("+", "0", 0, 0), ("e3", "0", 0, 0),
    ("1.0", "1", 1, 1000), ("1.", "1.", 1, 1000), ("007", "007", 7, 7000), ("+1", "+1", 1, 1000), (".5", "500m", 1, 500),
    ("1.5", "1500m", 2, 1500), ("100m", "100m", 1, 100), ("1000m", "1", 1, 1000), ("0500m", "0500m", 1, 500),
    ("0.1m", "100u", 1, 1), ("1500u", "1500u", 1, 2), ("0.5n", "1n", 1, 1), ("1.23456789012", "1234567891n", 2, 1235),
    ("100.100", "100.100", 101, 100_100), ("1000.5", "1000500m", 1001, 1_000_500), ("1000", "1k", 1000, 1_000_000),
    ("1024", "1024", 1024, 1_024_000), ("1.5k", "1500", 1500, 1_500_000), ("1.5e3", "1500", 1500, 1_500_000),
    ("2.5M", "2500k", 2_500_000, 2_500_000_000), ("1000k", "1M", 1_000_000, 1_000_000_000),
    ("1.5E", "1500P", 1_500_000_000_000_000_000, MAX), ("129e6", "129e6", 129_000_000, 129_000_000_000),
    ("1E3", "1E3", 1000, 1_000_000), ("1e1", "10", 10, 10_000), ("10e2", "1e3", 1000, 1_000_000), ("1e+3", "1e+3", 1000, 1_000_000),
    ("1e-1", "100e-3", 1, 100), ("12.5e-2", "12.5e-2", 1, 125), ("1Ki", "1Ki", 1024, 1_024_000),
    ("1024Ki", "1Mi", 1_048_576, 1_048_576_000), ("1.5Gi", "1536Mi", 1_610_612_736, 1_610_612_736_000),
    ("0.5Ki", "512", 512, 512_000), ("1.5Ki", "1536", 1536, 1_536_000), ("0.1Ki", "102400m", 103, 102_400),
    ("1.1Ki", "1126400m", 1127, 1_126_400), ("0.1Gi", "107374182400m", 107_374_183, 107_374_182_400),
    ("1000Ki", "1000Ki", 1_024_000, 1_024_000_000), ("016Ki", "16Ki", 16_384, 16_384_000),
    ("8Ei", "9223372036854775807", MAX, MAX), ("-8Ei", "-9223372036854775807", -MAX, MIN),
    ("10E", "10E", MAX, MAX), ("9223372036854775808", "9223372036854775808", MAX, MAX),
    // Upstream prints `1` here.
    ("1000E", "1000E", MAX, MAX),
    ("-1.5", "-1500m", -2, -1500), ("-0.5Gi", "-512Mi", -536_870_912, -536_870_912_000),
    ("1e-99999999999999999", "1e-9", 1, 1), ("0e99999999999999999", "0", 0, 0),
];

#[test]
fn every_known_text_reads_and_prints_like_upstream() {
    for (text, printed, value, milli) in TABLE {
        let read = quantity(text);
        assert_eq!(read.to_string(), *printed, "{text}");
        assert_eq!(read.value(), *value, "{text}");
        assert_eq!(read.milli_value(), *milli, "{text}");
    }
}

#[test]
fn malformed_texts_are_told_apart() {
    for text in [
        "", "1 Gi", "0x10", "1MB", "1GiB", "1..2", "1e3m", "1gi", "1,000", " 1", "1\n", "１",
    ] {
        assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::Shape), "{text:?}");
    }
    for text in ["1K", "1ki", "1i", "1e", "--1", "1e9223372036854775808", "1e+", "1Ki5"] {
        assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::Suffix), "{text:?}");
    }
    let long = "9".repeat(60);
    for text in ["1e2147483648", "1e30", "-1e31", "1e9223372036854775807", &long] {
        assert_eq!(text.parse::<Quantity>(), Err(ParseQuantityError::Range), "{text:?}");
    }
}

#[test]
fn lists_are_rounded_up_to_thousandths() {
    for (text, rounded) in [
        ("0.1m", "1m"),
        ("1500u", "2m"),
        ("0.5n", "1m"),
        ("1.23456789012", "1235m"),
        ("-1500u", "-2m"),
        ("100.100", "100.100"),
        ("0.0001Ki", "103m"),
    ] {
        assert_eq!(quantity(text).round_up_to_milli().to_string(), rounded, "{text}");
    }
}

#[test]
fn arithmetic_keeps_the_left_form_unless_it_is_zero() {
    let sum = |a: &str, b: &str| quantity(a).saturating_add(&quantity(b)).to_string();
    assert_eq!(sum("1Mi", "1024"), "1025Ki");
    assert_eq!(sum("1024", "1Mi"), "1049600");
    assert_eq!(sum("0", "1Mi"), "1Mi");
    assert_eq!(sum("+1", "0"), "1");
    let less = quantity("1").checked_sub(&quantity("1500m"));
    assert_eq!(less.unwrap().to_string(), "-500m");
    let most = Quantity::of(i128::MAX, QuantityFormat::DecimalSi);
    assert_eq!(most.checked_add(&quantity("1")), None);
    assert_eq!(most.saturating_add(&quantity("1")), most);
}

#[test]
fn the_api_form_is_trimmed_and_given_back() {
    let read = Quantity::try_from(&ApiQuantity(" 1500m ".to_owned())).unwrap();
    assert_eq!(ApiQuantity::from(&read).0, "1500m");
    assert_eq!(read, Quantity::from_milli(1500, QuantityFormat::BinarySi));
    assert_eq!(quantity("2"), Quantity::from_value(2, QuantityFormat::DecimalSi));
}

fn texts() -> impl Strategy<Value = String> {
    "[+-]?[0-9]{0,12}(\\.[0-9]{0,12})?(|n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})"
}

proptest! {
    #[test]
    fn printing_and_reading_again_keeps_the_amount(text in texts()) {
        if let Ok(read) = text.parse::<Quantity>() {
            prop_assert_eq!(&quantity(&read.to_string()), &read);
            let canonical = read.canonical();
            prop_assert_eq!(&quantity(&canonical), &read);
            prop_assert_eq!(quantity(&canonical).canonical(), canonical);
            let rounded = read.round_up_to_milli();
            prop_assert_eq!(&rounded.round_up_to_milli(), &rounded);
        }
    }

    #[test]
    fn reading_never_panics(text in "\\PC{0,12}") {
        let _ = text.parse::<Quantity>();
    }

    #[test]
    fn order_and_sums_follow_exact_arithmetic(a in any::<i64>(), b in any::<i64>(), powers in (0..4_u32, 0..4_u32)) {
        let suffix = |power| ["m", "", "k", "M"][power as usize];
        let exact = |n: i64, power| i128::from(n) * 1000_i128.pow(power);
        let (x, y) = (format!("{a}{}", suffix(powers.0)), format!("{b}{}", suffix(powers.1)));
        let (x, y) = (quantity(&x), quantity(&y));
        let (m, n) = (exact(a, powers.0), exact(b, powers.1));
        prop_assert_eq!(x.cmp(&y), m.cmp(&n));
        prop_assert_eq!(x.checked_add(&y).map(|sum| sum.nanos), Some((m + n) * 1_000_000));
        prop_assert_eq!(x.checked_sub(&y).map(|sum| sum.nanos), Some((m - n) * 1_000_000));
    }

    #[test]
    fn powers_of_1024_are_exact(whole in 0..1_000_000_i64, thousandths in 0..1000_i64) {
        let read = quantity(&format!("{whole}.{thousandths:03}Mi"));
        let milli = (i128::from(whole) * 1000 + i128::from(thousandths)) * 1_048_576;
        prop_assert!(read.nanos == milli * 1_000_000);
    }
}
