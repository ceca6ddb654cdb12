//! A pod over the CRI, with messages that are encoded here: this crate has no client of it.

use crate::containerd::images::BUSYBOX_IMAGE;
use crate::containerd::instance::PrivateContainerd;

/// A pod with one container that serves HTTP on port 80.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) container: String,
    pub(super) address: String,
}

impl Pod {
    /// Runs a pod of that name; its port is the machine's `host_port` too.
    pub(super) async fn run(containerd: &PrivateContainerd, name: &str, host_port: u16) -> Self {
        let metadata = [text(1, name), text(2, name), text(3, "default")].concat();
        let port = [number(2, 80), number(3, host_port.into())].concat();
        // The last is a Linux configuration that says nothing.
        let config = [field(1, &metadata), text(2, name), field(5, &port), field(8, &[])].concat();
        let answer = call(
            containerd,
            "/runtime.v1.RuntimeService/RunPodSandbox",
            &[field(1, &config)],
        )
        .await;
        let sandbox = first_text(&answer);
        let container = [
            field(1, &text(1, "web")),
            field(2, &text(1, BUSYBOX_IMAGE)),
            ["httpd", "-f", "-h", "/etc"].map(|word| text(3, word)).concat(),
        ]
        .concat();
        let request = [text(1, &sandbox), field(2, &container), field(3, &config)];
        let answer = call(containerd, "/runtime.v1.RuntimeService/CreateContainer", &request).await;
        let container = first_text(&answer);
        call(
            containerd,
            "/runtime.v1.RuntimeService/StartContainer",
            &[text(1, &container)],
        )
        .await;
        let answer = call(
            containerd,
            "/runtime.v1.RuntimeService/PodSandboxStatus",
            &[text(1, &sandbox)],
        )
        .await;
        // The length is before it, and what follows may look like a digit.
        let at = answer
            .windows(7)
            .position(|window| window == b"198.19.")
            .expect("the sandbox has an address");
        let length = usize::from(answer[at - 1]);
        let address = String::from_utf8_lossy(&answer[at..at + length]).into_owned();
        Self { container, address }
    }
}

/// The states of all containers, encoded.
pub(super) async fn containers(containerd: &PrivateContainerd) -> Vec<u8> {
    call(containerd, "/runtime.v1.RuntimeService/ListContainers", &[]).await
}

async fn call(containerd: &PrivateContainerd, method: &'static str, fields: &[Vec<u8>]) -> Vec<u8> {
    match containerd.call(method, fields.concat()).await {
        Ok(answer) => answer,
        Err(error) => panic!(
            "{}; the log ends with:\n{}",
            kubelet_core::error_chain(&error),
            containerd.log()
        ),
    }
}

/// A field with a message or a text.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(content.len() as u64), content].concat()
}

fn text(number: u8, content: &str) -> Vec<u8> {
    field(number, content.as_bytes())
}

fn number(number: u8, value: u64) -> Vec<u8> {
    [vec![number << 3], varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The text of an answer that has nothing but one short text.
fn first_text(answer: &[u8]) -> String {
    String::from_utf8(answer[2..].to_vec()).expect("an id is text")
}
