//! Blocks of user ids of the host, and who has them.

use std::collections::BTreeMap;

use crate::ids::PodUid;
use crate::runtime::{IdMapping, UserNamespace};

/// All user ids of the host; the last one is no user's, so that the block with it cannot be mapped.
const ALL: u64 = 1 << 32;

/// Blocks of one size, aligned to it.
#[derive(Debug)]
pub(super) struct Blocks {
    size: u64,
    first: u64,
    end: u64,
    held: BTreeMap<PodUid, UserNamespace>,
}

impl Blocks {
    /// Blocks within a range, its first id and how many; within all but the first and the last block where there is none.
    pub(super) fn new(range: Option<(u64, u64)>, size: u32, max_pods: u64) -> Result<Self, String> {
        let size = u64::from(size);
        let (first, count) = range.unwrap_or((size, ALL.saturating_sub(2 * size)));
        let wrong = |why: String| Err(format!("user ids of pods, {count} from {first} on: {why}"));
        if first < size || !first.is_multiple_of(size) {
            return wrong(format!("the first must be a multiple of {size}, and not 0"));
        }
        if !count.is_multiple_of(size) {
            return wrong(format!("their number must be a multiple of {size}"));
        }
        if first + count >= ALL {
            return wrong("there are not so many".to_owned());
        }
        if range.is_some() && count / size < max_pods {
            return wrong(format!("too few for {max_pods} pods of {size}"));
        }
        Ok(Self {
            size,
            first,
            end: first + count,
            held: BTreeMap::new(),
        })
    }

    pub(super) fn held_by(&self, uid: &PodUid) -> Option<&UserNamespace> {
        self.held.get(uid)
    }

    /// Notes what a pod has. It need not be of these blocks: settings change.
    pub(super) fn hold(&mut self, uid: &PodUid, users: &UserNamespace) -> Result<(), String> {
        let (first, end) = span(users);
        let mut others = self
            .held
            .iter()
            .filter(|(other, _)| *other != uid)
            .map(|(_, held)| span(held));
        if others.any(|(other, other_end)| first < other_end && other < end) {
            return Err(format!("another pod has some of the user ids from {first} on"));
        }
        match self.held.insert(uid.clone(), users.clone()) {
            Some(before) if before != *users => {
                let (was, _) = span(&before);
                self.held.insert(uid.clone(), before);
                Err(format!(
                    "the pod had the user ids from {was} on, and not those from {first} on"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Gives the first free block to a pod; nothing if there is none.
    pub(super) fn give(&mut self, uid: &PodUid) -> Option<UserNamespace> {
        let mut taken: Vec<(u64, u64)> = self.held.values().map(span).collect();
        taken.sort_unstable();
        let mut at = self.first;
        for (first, end) in taken {
            if at + self.size <= first {
                break;
            }
            // The first block that begins after it.
            at = at.max(end.div_ceil(self.size) * self.size);
        }
        if at + self.size > self.end {
            return None;
        }
        let (host, length) = (u32::try_from(at).ok()?, u32::try_from(self.size).ok()?);
        let users = UserNamespace::of_block(IdMapping::new(host, 0, length));
        self.held.insert(uid.clone(), users.clone());
        Some(users)
    }

    pub(super) fn release(&mut self, uid: &PodUid) {
        self.held.remove(uid);
    }
}

/// The first id of the host that a pod has, and the one after the last.
fn span(users: &UserNamespace) -> (u64, u64) {
    let all = users.uids.iter().chain(&users.gids);
    let spans = all.map(|block| {
        (
            u64::from(block.host_id),
            u64::from(block.host_id) + u64::from(block.length),
        )
    });
    spans
        .reduce(|(first, end), (other, other_end)| (first.min(other), end.max(other_end)))
        .unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, any, prop_assert, prop_oneof, proptest};

    use super::Blocks;
    use crate::ids::PodUid;
    use crate::runtime::{IdMapping, UserNamespace};

    const SIZE: u32 = 65_536;

    fn host_id(blocks: &mut Blocks, uid: &str) -> Option<u32> {
        blocks.give(&PodUid::from(uid)).map(|users| users.uids[0].host_id)
    }

    #[test]
    fn ranges_must_be_of_whole_blocks_for_all_pods() {
        let size = u64::from(SIZE);
        assert!(Blocks::new(None, SIZE, 110).is_ok());
        assert!(Blocks::new(None, 4 * SIZE, 110).is_ok());
        assert!(Blocks::new(Some((size, 110 * size)), SIZE, 110).is_ok());
        for (range, words) in [
            ((0, 110 * size), "not 0"),
            ((size + 1, 110 * size), "multiple"),
            ((size, 110 * size + 1), "multiple"),
            ((size, 109 * size), "too few"),
            ((size, (1 << 32) - size), "not so many"),
        ] {
            let error = Blocks::new(Some(range), SIZE, 110).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        // The first one must not be among those that a larger block begins with.
        assert!(Blocks::new(Some((size, 128 * size)), 2 * SIZE, 2).is_err());
    }

    #[test]
    fn the_lowest_free_block_is_given() {
        let mut blocks = Blocks::new(Some((65_536, 3 * 65_536)), SIZE, 3).unwrap();
        assert_eq!(host_id(&mut blocks, "a"), Some(65_536));
        assert_eq!(host_id(&mut blocks, "b"), Some(2 * 65_536));
        assert_eq!(host_id(&mut blocks, "c"), Some(3 * 65_536));
        assert_eq!(host_id(&mut blocks, "d"), None);
        blocks.release(&PodUid::from("b"));
        assert_eq!(host_id(&mut blocks, "d"), Some(2 * 65_536));
    }

    #[test]
    fn what_was_given_under_other_settings_is_not_given_again() {
        let mut blocks = Blocks::new(Some((65_536, 4 * 65_536)), SIZE, 4).unwrap();
        let old = UserNamespace::of_block(IdMapping::new(100_000, 0, 65_536));
        blocks.hold(&PodUid::from("old"), &old).unwrap();
        assert_eq!(host_id(&mut blocks, "a"), Some(3 * 65_536));
        let error = blocks.hold(&PodUid::from("other"), &old).unwrap_err();
        assert!(error.contains("another pod"), "{error}");
        blocks.hold(&PodUid::from("old"), &old).unwrap();
    }

    proptest! {
        #[test]
        fn no_two_pods_share_an_id(steps in proptest::collection::vec((prop_oneof![Just(true), Just(false)], 0_u8..6, any::<u8>()), 1..40)) {
            let mut blocks = Blocks::new(Some((65_536, 4 * 65_536)), SIZE, 4).unwrap();
            for (gives, pod, odd) in steps {
                let uid = PodUid::from(format!("u{pod}"));
                if !gives {
                    blocks.release(&uid);
                } else if blocks.held_by(&uid).is_none() {
                    if odd.is_multiple_of(3) {
                        let host = 65_536 + u32::from(odd) * 1_000;
                        let _ = blocks.hold(&uid, &UserNamespace::of_block(IdMapping::new(host, 0, SIZE)));
                    } else {
                        blocks.give(&uid);
                    }
                }
                let mut spans: Vec<_> = blocks.held.values().map(super::span).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", spans);
            }
        }
    }
}
