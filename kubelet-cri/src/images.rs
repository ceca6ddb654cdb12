//! Images.

use std::collections::BTreeSet;
use std::path::PathBuf;

use async_trait::async_trait;
use kubelet_core::{
    ImageFilesystems, ImageId, ImageRecord, ImageRef, ImageService, PullProgress, PullRequest, RuntimeError,
};
use kubelet_proto::cri::v1;
use kubelet_proto::tonic::{Code, Request};

use crate::client::{Client, answer, within};
use crate::convert::{auth_config, image_record, image_spec, sandbox_config};
use crate::error::Op;
use crate::lists::{ImageUse, UseList};
use crate::runtime::CriRuntime;
use crate::sandbox_image::pin_sandbox_image;

/// Where images and the writable layers of containers are.
pub(crate) async fn filesystems(client: &Client) -> Result<ImageFilesystems, RuntimeError> {
    let op = Op::read("image_fs_info", "image file systems", "");
    let limit = client.limit();
    let mut images = client.images();
    let said = answer(
        op,
        limit,
        images.image_fs_info(within(limit, v1::ImageFsInfoRequest {})),
    )
    .await?;
    let places = |list: Vec<v1::FilesystemUsage>| {
        list.into_iter()
            .filter_map(|usage| usage.fs_id)
            .map(|id| PathBuf::from(id.mountpoint))
            .collect::<Vec<_>>()
    };
    let mut filesystems = ImageFilesystems::default();
    filesystems.images = places(said.image_filesystems);
    filesystems.containers = places(said.container_filesystems);
    if filesystems.containers.is_empty() {
        // Runtimes from before the second list keep both together.
        filesystems.containers.clone_from(&filesystems.images);
    }
    Ok(filesystems)
}

/// What a runtime said of a pull. CRI has no codes for these, but asks for texts that begin so.
///
/// Source: `cri-api/pkg/errors`.
fn refused(message: &str) -> RuntimeError {
    let known = ["RegistryUnavailable", "SignatureValidationFailed"];
    RuntimeError::Refused {
        message: message.to_owned(),
        reason: known.into_iter().find(|reason| message.starts_with(reason)),
    }
}

#[async_trait]
impl ImageService for CriRuntime {
    async fn status(&self, image: &ImageRef, handler: &str) -> Result<Option<ImageRecord>, RuntimeError> {
        let op = Op::read("image_status", "image", &image.name);
        let request = v1::ImageStatusRequest {
            image: Some(image_spec(image, handler)),
            verbose: false,
        };
        let limit = self.client.limit();
        let mut images = self.client.images();
        match answer(op, limit, images.image_status(within(limit, request))).await {
            Ok(said) => match said.image {
                Some(image) => image_record(image).map(Some).map_err(|why| op.bad_answer(why)),
                None => Ok(None),
            },
            Err(RuntimeError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn used_by_others(&self) -> Result<BTreeSet<String>, RuntimeError> {
        let op = Op::read("list_containers", "containers", "");
        let all = self
            .client
            .list::<_, UseList>(op, v1::ListContainersRequest::default())
            .await?;
        let others = all.into_iter().filter(|container| container.mark.pod_uid.is_none());
        let names = others.flat_map(
            |ImageUse {
                 image,
                 image_ref,
                 image_id,
                 ..
             }| {
                let asked = image.map(|image| image.image).unwrap_or_default();
                [asked, image_ref, image_id]
            },
        );
        Ok(names.filter(|name| !name.is_empty()).collect())
    }

    async fn list(&self) -> Result<Vec<ImageRecord>, RuntimeError> {
        let op = Op::read("list_images", "images", "");
        let limit = self.client.limit();
        let mut images = self.client.images();
        let said = answer(
            op,
            limit,
            images.list_images(within(limit, v1::ListImagesRequest::default())),
        )
        .await?;
        let mut records = Vec::with_capacity(said.images.len());
        for image in said.images {
            records.push(image_record(image).map_err(|why| op.bad_answer(why))?);
        }
        pin_sandbox_image(&self.client, &mut records).await;
        Ok(records)
    }

    async fn pull(&self, req: PullRequest<'_>, _progress: &dyn PullProgress) -> Result<ImageId, RuntimeError> {
        let op = Op::change("pull_image", "image", &req.image.name);
        let mut image = image_spec(req.image, req.handler);
        if let Some(sandbox) = req.sandbox {
            image.annotations.clone_from(&sandbox.annotations);
        }
        let request = v1::PullImageRequest {
            image: Some(image),
            auth: req.auth.map(auth_config),
            sandbox_config: req.sandbox.map(sandbox_config),
        };
        // As long as it takes: only the caller gives it up, by dropping the call.
        let said = match self.client.images().pull_image(Request::new(request)).await {
            Ok(said) => said.into_inner(),
            Err(status) => match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unimplemented => {
                    return Err(op.error(status));
                }
                // The registry's answer, in words that users look for. What is not found is not there to be pulled.
                _ => return Err(refused(status.message())),
            },
        };
        if said.image_ref.is_empty() {
            return Err(op.bad_answer("an image without a reference"));
        }
        Ok(ImageId::from(said.image_ref))
    }

    async fn remove(&self, id: &ImageId) -> Result<(), RuntimeError> {
        let op = Op::change("remove_image", "image", id.as_str());
        let request = v1::RemoveImageRequest {
            image: Some(image_spec(&ImageRef::new(id.as_str()), "")),
        };
        let limit = self.client.limit();
        let mut images = self.client.images();
        match answer(op, limit, images.remove_image(within(limit, request))).await {
            Ok(_) | Err(RuntimeError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn filesystems(&self) -> Result<ImageFilesystems, RuntimeError> {
        filesystems(&self.client).await
    }
}

#[cfg(test)]
mod tests {
    use kubelet_core::RuntimeError;

    use super::refused;

    #[test]
    fn a_refused_pull_has_the_reason_that_its_text_begins_with() {
        for (text, expected) in [
            ("RegistryUnavailable: reg.example is down", Some("RegistryUnavailable")),
            ("SignatureValidationFailed", Some("SignatureValidationFailed")),
            ("401 Unauthorized, not RegistryUnavailable", None),
        ] {
            let RuntimeError::Refused { message, reason } = refused(text) else {
                panic!("{text} is a refusal");
            };
            assert_eq!((message.as_str(), reason), (text, expected));
        }
    }
}
