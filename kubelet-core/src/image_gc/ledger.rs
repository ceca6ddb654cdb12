//! What is known of images over time, and which of them may go. Decides; calls nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::ids::ImageId;
use crate::runtime::{ImageRecord, ImageSpace};

/// One present image.
#[derive(Debug)]
struct Known {
    first_seen: Instant,
    last_used: Option<Instant>,
    size_bytes: u64,
    pinned: bool,
}

/// An image that may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: ImageId,
    pub(crate) size_bytes: u64,
}

/// The images that are present, since when they are known, and when they were last used.
#[derive(Debug, Default)]
pub(crate) struct ImageLedger {
    images: BTreeMap<ImageId, Known>,
    /// When each of the names that containers have for their image was last used. Kept apart, since it is learnt without
    /// asking which images there are.
    used: BTreeMap<String, Instant>,
}

impl ImageLedger {
    /// Containers whose images have these names are there now.
    pub(crate) fn used(&mut self, names: BTreeSet<String>, now: Instant) {
        for name in names {
            self.used.insert(name, now);
        }
    }

    /// How many names of used images are remembered.
    pub(crate) fn names(&self) -> usize {
        self.used.len()
    }

    /// These images are present now.
    pub(crate) fn present(&mut self, images: &[ImageRecord], now: Instant) {
        let used = &self.used;
        let mut before = std::mem::take(&mut self.images);
        self.images = images
            .iter()
            .map(|image| {
                let names = image.tags.iter().chain(&image.digests).map(String::as_str);
                let last_used = names.chain([image.id.as_str()]).filter_map(|name| used.get(name)).max();
                let known = before.remove(&image.id);
                let known = Known {
                    first_seen: known.as_ref().map_or(now, |known| known.first_seen),
                    last_used: last_used.copied().max(known.and_then(|known| known.last_used)),
                    size_bytes: image.size_bytes,
                    pinned: image.pinned,
                };
                (image.id.clone(), known)
            })
            .collect();
        // What is past is with its image now, or has none any more.
        self.used.retain(|_, at| *at == now);
    }

    /// This image is used now.
    pub(crate) fn is_used(&mut self, id: &ImageId, now: Instant) {
        if let Some(known) = self.images.get_mut(id) {
            known.last_used = Some(now);
        }
    }

    pub(crate) fn removed(&mut self, id: &ImageId) {
        self.images.remove(id);
    }

    /// Whether any image may be removed once it is not used.
    pub(crate) fn has_removable(&self) -> bool {
        self.images.values().any(|known| !known.pinned)
    }

    /// The images that nobody uses now, longest unused first, then longest known.
    fn unused(&self, now: Instant) -> impl Iterator<Item = (&ImageId, &Known)> {
        let mut unused: Vec<_> = self
            .images
            .iter()
            .filter(|(_, known)| !known.pinned && known.last_used.is_none_or(|at| at < now))
            .collect();
        unused.sort_by_key(|(_, known)| (known.last_used, known.first_seen));
        unused.into_iter()
    }

    /// Those that were not used for so long. One that was never used counts from when it became known.
    pub(crate) fn aged(&self, max_age: Duration, now: Instant) -> Vec<Candidate> {
        self.unused(now)
            .filter(|(_, known)| now - known.last_used.unwrap_or(known.first_seen) > max_age)
            .map(|(id, known)| candidate(id, known))
            .collect()
    }

    /// Those that may go for lack of room, in order, and how long until one more may.
    pub(crate) fn dispensable(&self, min_age: Duration, now: Instant) -> (Vec<Candidate>, Option<Duration>) {
        let (mut old, mut next) = (Vec::new(), None);
        for (id, known) in self.unused(now) {
            let age = now - known.first_seen;
            if age >= min_age {
                old.push(candidate(id, known));
            } else {
                let left = min_age - age;
                next = Some(next.map_or(left, |next: Duration| next.min(left)));
            }
        }
        (old, next)
    }
}

fn candidate(id: &ImageId, known: &Known) -> Candidate {
    Candidate {
        id: id.clone(),
        size_bytes: known.size_bytes,
    }
}

/// How full a file system is, in whole percent.
pub(crate) fn usage_percent(space: ImageSpace) -> u64 {
    let capacity = u128::from(space.capacity_bytes).max(1);
    let available = u128::from(space.available_bytes).min(capacity);
    100 - u64::try_from(available * 100 / capacity).unwrap_or(100)
}

/// How many bytes have to go for it to be `low` percent full.
pub(crate) fn excess_bytes(space: ImageSpace, low: u8) -> u64 {
    let wanted = u128::from(space.capacity_bytes) * u128::from(100 - low.min(100)) / 100;
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    wanted.saturating_sub(space.available_bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::{ImageLedger, excess_bytes, usage_percent};
    use crate::ids::ImageId;
    use crate::runtime::{ImageRecord, ImageSpace};

    const SECOND: Duration = Duration::from_secs(1);

    fn image(name: &str, size: u64) -> ImageRecord {
        let mut image = ImageRecord::new(ImageId::from(format!("sha256:{name}")));
        image.tags.push(format!("registry.example/{name}:1"));
        image.digests.push(format!("registry.example/{name}@sha256:00"));
        image.size_bytes = size;
        image
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn ids(candidates: &[super::Candidate]) -> Vec<&str> {
        candidates.iter().map(|candidate| candidate.id.as_str()).collect()
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_is_used_or_pinned_stays() {
        let (mut ledger, begun) = (ImageLedger::default(), Instant::now());
        let mut pinned = image("pinned", 1);
        pinned.pinned = true;
        let images = [
            image("never", 1),
            image("by-id", 1),
            image("by-tag", 1),
            image("by-digest", 1),
            pinned,
        ];
        ledger.used(names(&["sha256:by-id"]), begun);
        ledger.present(&images, begun);
        ledger.used(names(&["registry.example/by-tag:1"]), begun + SECOND);
        ledger.used(names(&["registry.example/by-digest@sha256:00"]), begun + SECOND * 2);
        let now = begun + SECOND * 2;
        ledger.present(&images, now);
        let (old, next) = ledger.dispensable(SECOND, now);
        assert_eq!(ids(&old), ["sha256:never", "sha256:by-id", "sha256:by-tag"]);
        assert_eq!(next, None);
        ledger.is_used(&ImageId::from("sha256:never"), now);
        ledger.removed(&ImageId::from("sha256:by-id"));
        assert_eq!(ids(&ledger.dispensable(SECOND, now).0), ["sha256:by-tag"]);
    }

    #[test]
    fn an_image_must_be_known_for_a_while_before_it_goes_for_room() {
        let (mut ledger, begun) = (ImageLedger::default(), Instant::now());
        ledger.present(&[image("old", 1)], begun);
        ledger.present(&[image("old", 1), image("new", 1)], begun + SECOND * 90);
        let now = begun + SECOND * 120;
        let (old, next) = ledger.dispensable(SECOND * 120, now);
        assert_eq!(ids(&old), ["sha256:old"]);
        assert_eq!(next, Some(SECOND * 90));
    }

    #[test]
    fn age_counts_from_the_last_use_or_from_when_it_became_known() {
        let (mut ledger, begun) = (ImageLedger::default(), Instant::now());
        let images = [image("used", 1), image("never", 1)];
        ledger.present(&images, begun);
        ledger.used(names(&["sha256:used"]), begun + SECOND * 50);
        let now = begun + SECOND * 101;
        ledger.present(&images, now);
        assert_eq!(ids(&ledger.aged(SECOND * 100, now)), ["sha256:never"]);
        assert_eq!(ids(&ledger.aged(SECOND * 50, now)), ["sha256:never", "sha256:used"]);
        // An image that was away is a new one.
        ledger.present(&[], now);
        ledger.present(&images, now);
        assert!(ledger.aged(SECOND * 50, now).is_empty());
    }

    proptest! {
        #[test]
        fn freeing_the_excess_brings_the_disk_to_the_low_threshold(
            capacity in 1u64..1 << 50, used_permille in 0u64..=1000, low in 0u8..100,
        ) {
            let available = capacity - capacity / 1000 * used_permille;
            let space = ImageSpace::new(capacity, available);
            let percent = usage_percent(space);
            prop_assert!(percent <= 100);
            let excess = excess_bytes(space, low);
            let after = ImageSpace::new(capacity, available + excess);
            prop_assert!(usage_percent(after) <= u64::from(low) + 1);
            prop_assert!(excess == 0 || percent >= u64::from(low));
        }
    }

    #[test]
    fn percents_are_those_of_the_spec() {
        for (capacity, available, percent, excess) in [
            (100, 20, 80, 0),
            (100, 15, 85, 5),
            (1000, 159, 85, 41),
            (1000, 151, 85, 49),
            (100, 0, 100, 20),
            (100, 200, 0, 0),
            (0, 0, 100, 0),
        ] {
            let space = ImageSpace::new(capacity, available);
            assert_eq!(usage_percent(space), percent, "{space:?}");
            assert_eq!(excess_bytes(space, 80), excess, "{space:?}");
        }
    }
}
