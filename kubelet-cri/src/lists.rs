//! Lists, of which only what a relist compares is decoded.
//!
//! A full list of 2,000 containers has tens of thousands of labels and annotations; decoding them each second would cost more
//! than all else that an idle node does. These messages have the field numbers of CRI v1 and skip everything else. Of the
//! labels only our mark is kept.

use bytes::{Buf, BufMut};
use kubelet_core::label;
use kubelet_proto::prost::DecodeError;
use kubelet_proto::prost::Message;
use kubelet_proto::prost::encoding::{DecodeContext, WireType, decode_varint, skip_field};

/// An answer with a list. One with a piece of it has the same form, and so have their requests.
pub(crate) trait List: Message + Default + 'static {
    /// What is listed.
    type Item;
    /// The call that answers with the whole list.
    const WHOLE: &'static str;
    /// The call that answers with one piece after the other.
    const PIECES: &'static str;

    fn items(self) -> Vec<Self::Item>;
}

impl List for SandboxList {
    type Item = SandboxItem;
    const WHOLE: &'static str = "/runtime.v1.RuntimeService/ListPodSandbox";
    const PIECES: &'static str = "/runtime.v1.RuntimeService/StreamPodSandboxes";

    fn items(self) -> Vec<SandboxItem> {
        self.items
    }
}

impl List for ContainerList {
    type Item = ContainerItem;
    const WHOLE: &'static str = "/runtime.v1.RuntimeService/ListContainers";
    const PIECES: &'static str = "/runtime.v1.RuntimeService/StreamContainers";

    fn items(self) -> Vec<ContainerItem> {
        self.items
    }
}

/// `ListPodSandboxResponse`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct SandboxList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<SandboxItem>,
}

/// `PodSandbox`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct SandboxItem {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<SandboxName>,
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    #[prost(message, required, tag = "5")]
    pub(crate) mark: Mark,
}

/// `PodSandboxMetadata`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct SandboxName {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(crate) attempt: u32,
}

/// `ListContainersResponse`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct ContainerList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<ContainerItem>,
}

/// `Container`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct ContainerItem {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) metadata: Option<ContainerName>,
    #[prost(int32, tag = "6")]
    pub(crate) state: i32,
    #[prost(int64, tag = "7")]
    pub(crate) created_at: i64,
    #[prost(message, required, tag = "8")]
    pub(crate) mark: Mark,
}

/// `ContainerMetadata`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct ContainerName {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

impl List for UseList {
    type Item = ImageUse;
    const WHOLE: &'static str = ContainerList::WHOLE;
    const PIECES: &'static str = ContainerList::PIECES;

    fn items(self) -> Vec<ImageUse> {
        self.items
    }
}

/// `ListContainersResponse`, for who looks at images.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct UseList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<ImageUse>,
}

/// `Container`, of which the names of its image are kept.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct ImageUse {
    #[prost(message, optional, tag = "4")]
    pub(crate) image: Option<ImageName>,
    #[prost(string, tag = "5")]
    pub(crate) image_ref: String,
    #[prost(message, required, tag = "8")]
    pub(crate) mark: Mark,
    #[prost(string, tag = "10")]
    pub(crate) image_id: String,
}

/// `ImageSpec`.
#[derive(Clone, PartialEq, Message)]
#[prost(prost_path = "kubelet_proto::prost")]
pub(crate) struct ImageName {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

/// The labels of an object, of which the pod's UID is kept. On the wire a map is a list of entries, each a message; entry
/// after entry is merged into this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) pod_uid: Option<String>,
    /// The key of the present entry is the one that counts.
    is_uid: bool,
}

impl Message for Mark {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        // Only ever read.
        let _ = buf;
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if !matches!(tag, 1 | 2) || wire_type != WireType::LengthDelimited {
            return skip_field(wire_type, tag, buf, ctx);
        }
        let length = decode_varint(buf)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= buf.remaining());
        let Some(length) = length else {
            // The only error that this library lets others make.
            return skip_field(WireType::EndGroup, tag, buf, ctx);
        };
        match tag {
            1 => self.is_uid = eats(buf, length, label::POD_UID.as_bytes()),
            _ if self.is_uid => {
                self.is_uid = false;
                let text = buf.copy_to_bytes(length);
                self.pod_uid = Some(String::from_utf8_lossy(&text).into_owned());
            }
            _ => buf.advance(length),
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        0
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Takes `length` bytes, and says whether they are these.
fn eats(buf: &mut impl Buf, length: usize, expected: &[u8]) -> bool {
    let mut same = length == expected.len();
    let mut left = length;
    let mut rest = expected;
    while left > 0 {
        let chunk = buf.chunk();
        let n = chunk.len().min(left);
        if same {
            let (head, tail) = rest.split_at(n);
            same = chunk[..n] == *head;
            rest = tail;
        }
        buf.advance(n);
        left -= n;
    }
    same
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_core::label;
    use kubelet_proto::cri::v1;
    use kubelet_proto::prost::Message;

    use super::{ContainerList, SandboxList};

    fn labels(uid: Option<&str>) -> BTreeMap<String, String> {
        let mut labels: BTreeMap<String, String> = (0..5).map(|n| (format!("label-{n}"), "x".repeat(n))).collect();
        labels.insert("io.kubernetes.pod.uie".to_owned(), "not this".to_owned());
        if let Some(uid) = uid {
            labels.insert(label::POD_UID.to_owned(), uid.to_owned());
        }
        labels
    }

    #[test]
    fn a_list_of_sandboxes_is_read_without_what_nobody_needs() {
        let full = v1::ListPodSandboxResponse {
            items: vec![
                v1::PodSandbox {
                    id: "s1".to_owned(),
                    metadata: Some(v1::PodSandboxMetadata {
                        name: "web".to_owned(),
                        uid: "of the metadata".to_owned(),
                        namespace: "shop".to_owned(),
                        attempt: 3,
                    }),
                    state: 1,
                    created_at: 42,
                    labels: labels(Some("u-1")),
                    annotations: labels(None),
                    runtime_handler: "runc".to_owned(),
                },
                v1::PodSandbox {
                    id: "s2".to_owned(),
                    labels: labels(None),
                    ..v1::PodSandbox::default()
                },
            ],
        };
        let list = SandboxList::decode(full.encode_to_vec().as_slice()).unwrap();
        let [one, two] = list.items.as_slice() else {
            panic!("{list:?}")
        };
        assert_eq!((one.id.as_str(), one.state, one.created_at), ("s1", 1, 42));
        assert_eq!(one.metadata.as_ref().unwrap().attempt, 3);
        assert_eq!(one.mark.pod_uid.as_deref(), Some("u-1"));
        assert_eq!(
            (two.id.as_str(), &two.metadata, &two.mark.pod_uid),
            ("s2", &None, &None)
        );
    }

    #[test]
    fn a_list_of_containers_is_read_without_what_nobody_needs() {
        let full = v1::ListContainersResponse {
            containers: vec![v1::Container {
                id: "c1".to_owned(),
                pod_sandbox_id: "s1".to_owned(),
                metadata: Some(v1::ContainerMetadata {
                    name: "app".to_owned(),
                    attempt: 2,
                }),
                state: 2,
                created_at: 7,
                labels: labels(Some("u-1")),
                annotations: labels(Some("not a label")),
                image_ref: "sha256:1".to_owned(),
                ..v1::Container::default()
            }],
        };
        let list = ContainerList::decode(full.encode_to_vec().as_slice()).unwrap();
        let [one] = list.items.as_slice() else {
            panic!("{list:?}")
        };
        assert_eq!(
            (one.id.as_str(), one.sandbox_id.as_str(), one.state, one.created_at),
            ("c1", "s1", 2, 7)
        );
        let name = one.metadata.as_ref().unwrap();
        assert_eq!((name.name.as_str(), name.attempt), ("app", 2));
        assert_eq!(one.mark.pod_uid.as_deref(), Some("u-1"));
    }

    #[test]
    fn a_cut_off_list_is_an_error_and_no_panic() {
        let full = v1::ListContainersResponse {
            containers: vec![v1::Container {
                id: "c1".to_owned(),
                labels: labels(Some("u-1")),
                ..v1::Container::default()
            }],
        };
        let bytes = full.encode_to_vec();
        for end in 1..bytes.len() {
            assert!(ContainerList::decode(&bytes[..end]).is_err(), "{end}");
        }
    }
}
