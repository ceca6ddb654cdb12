//! Removal of images that nobody uses: when the disk fills, and when they are old.
//!
//! Source: kubelet 1.36, `images/image_gc_manager.go`. What a pod names counts as used here, so that no image goes between its
//! pull and its container; and while nothing is due no call is made.

mod collector;
mod ledger;

use std::time::Duration;

pub(crate) use collector::{GcMetrics, ImageCollector};

/// When unused images are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageGcPolicy {
    /// From this part of the images' file system in use on, in percent, the longest unused ones go. Default: 85. With 100 the
    /// disk is left alone.
    pub high_threshold_percent: u8,
    /// … until so much of it is in use. Default: 80.
    pub low_threshold_percent: u8,
    /// How long an image must have been known before it goes for lack of room. Default: 2 min.
    pub min_age: Duration,
    /// How long an image may be unused before it goes, whatever room there is. Default: nothing, which is for ever.
    pub max_age: Option<Duration>,
    /// How often that is looked at. Default: 5 min.
    pub period: Duration,
}

impl Default for ImageGcPolicy {
    fn default() -> Self {
        Self {
            high_threshold_percent: 85,
            low_threshold_percent: 80,
            min_age: Duration::from_secs(120),
            max_age: None,
            period: Duration::from_secs(300),
        }
    }
}

impl ImageGcPolicy {
    /// No image is ever removed.
    #[must_use]
    pub fn off() -> Self {
        Self {
            high_threshold_percent: 100,
            ..Self::default()
        }
    }

    /// Whether it never removes anything.
    pub(crate) fn is_off(&self) -> bool {
        self.high_threshold_percent >= 100 && self.max_age.is_none()
    }

    /// What is wrong with it: the field, and why.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        let (high, low) = (self.high_threshold_percent, self.low_threshold_percent);
        if high > 100 {
            return Some(("high_threshold_percent", format!("{high} is more than 100")));
        }
        if low >= high {
            let why = format!("{low} is not less than high_threshold_percent, which is {high}");
            return Some(("low_threshold_percent", why));
        }
        if let Some(max_age) = self.max_age.filter(|max_age| *max_age <= self.min_age) {
            let why = format!("{max_age:?} is not more than min_age, which is {:?}", self.min_age);
            return Some(("max_age", why));
        }
        self.period.is_zero().then(|| ("period", "it is zero".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ImageGcPolicy;

    #[test]
    fn what_is_wrong_with_a_policy_is_named() {
        assert_eq!(ImageGcPolicy::default().fault(), None);
        assert_eq!(ImageGcPolicy::off().fault(), None);
        assert!(ImageGcPolicy::off().is_off());
        type Change = fn(&mut ImageGcPolicy);
        let cases: [(Change, &str); 5] = [
            (|p| p.high_threshold_percent = 101, "high_threshold_percent"),
            (|p| p.low_threshold_percent = 85, "low_threshold_percent"),
            (|p| p.high_threshold_percent = 0, "low_threshold_percent"),
            (|p| p.max_age = Some(Duration::from_secs(120)), "max_age"),
            (|p| p.period = Duration::ZERO, "period"),
        ];
        for (change, field) in cases {
            let mut policy = ImageGcPolicy::default();
            change(&mut policy);
            assert_eq!(policy.fault().unwrap().0, field);
        }
    }
}
