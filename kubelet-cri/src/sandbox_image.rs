//! The image that the runtime makes sandboxes of, which must never be collected.
//!
//! Newer runtimes pin it. Older ones do not, and no container shows that it is used: once it is collected, no pod starts any
//! more where no registry can be reached. What their verbose status tells of their configuration names it.

use std::collections::BTreeMap;
use std::error::Error;

use kubelet_core::ImageRecord;
use kubelet_proto::cri::v1;
use serde_json::Value;
use tracing::debug;

use crate::client::{Client, answer, within};
use crate::error::Op;

/// Pins the sandbox image, where the runtime itself pins none.
pub(crate) async fn pin_sandbox_image(client: &Client, images: &mut [ImageRecord]) {
    if images.is_empty() || images.iter().any(|image| image.pinned) {
        return;
    }
    let op = Op::read("status", "status", "");
    let limit = client.limit();
    let mut runtime = client.runtime();
    let asked = answer(
        op,
        limit,
        runtime.status(within(limit, v1::StatusRequest { verbose: true })),
    )
    .await;
    match asked {
        Ok(said) => {
            if let Some(name) = sandbox_image(&said.info) {
                pin(&name, images);
            }
        }
        Err(error) => debug!(
            error = &error as &dyn Error,
            "the runtime does not tell its sandbox image"
        ),
    }
}

/// containerd shows its configuration under this name, as JSON.
fn sandbox_image(info: &BTreeMap<String, String>) -> Option<String> {
    let config: Value = serde_json::from_str(info.get("config")?).ok()?;
    let name = config.get("sandboxImage")?.as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn pin(name: &str, images: &mut [ImageRecord]) {
    // A short name stands for one of Docker Hub.
    let full = [
        name.to_owned(),
        format!("docker.io/{name}"),
        format!("docker.io/library/{name}"),
    ];
    for image in images {
        image.pinned |= image
            .tags
            .iter()
            .chain(&image.digests)
            .any(|known| full.contains(known));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kubelet_core::{ImageId, ImageRecord};

    use super::{pin, sandbox_image};

    #[test]
    fn the_configuration_names_it_and_all_of_its_names_are_known() {
        let info = |config: &str| BTreeMap::from([("config".to_owned(), config.to_owned())]);
        let named = info(r#"{"containerd": {}, "sandboxImage": "registry.example/pause:3.9"}"#);
        assert_eq!(sandbox_image(&named).as_deref(), Some("registry.example/pause:3.9"));
        for without in ["", "[]", "{}", r#"{"sandboxImage": ""}"#, r#"{"sandboxImage": 3}"#] {
            assert_eq!(sandbox_image(&info(without)), None, "{without}");
        }
        assert_eq!(sandbox_image(&BTreeMap::new()), None);

        for (name, known) in [
            ("registry.example/pause:3.9", "registry.example/pause:3.9"),
            ("registry.example/pause@sha256:00", "registry.example/pause@sha256:00"),
            ("pause:3.9", "docker.io/library/pause:3.9"),
            ("team/pause:3.9", "docker.io/team/pause:3.9"),
        ] {
            let mut images = [
                ImageRecord::new(ImageId::from("1")),
                ImageRecord::new(ImageId::from("2")),
            ];
            images[0].tags.push("registry.example/other:3.9".to_owned());
            images[1].tags.push(known.to_owned());
            pin(name, &mut images);
            assert_eq!(images.map(|image| image.pinned), [false, true], "{name}");
        }
    }
}
