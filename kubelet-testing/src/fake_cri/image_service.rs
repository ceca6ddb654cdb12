//! The image service.

use kubelet_core::{IgnoreProgress, ImageRef, ImageService as _, PullRequest, RegistryAuth};
use kubelet_proto::cri::v1;
use kubelet_proto::cri::v1::image_service_server::ImageService;
use kubelet_proto::tonic::codegen::BoxStream;
use kubelet_proto::tonic::{Request, Response, Status, async_trait};

use crate::fake_cri::face::{Face, refuse};
use crate::fake_cri::lists::pieces;
use crate::fake_cri::rpc::Rpc;
use crate::fake_cri::status::{image, nanos};

fn reference(spec: Option<v1::ImageSpec>) -> Result<ImageRef, Status> {
    match spec {
        Some(spec) if !spec.image.is_empty() => Ok(ImageRef::new(spec.image)),
        _ => Err(Status::invalid_argument("an image must be named")),
    }
}

impl Face {
    async fn images(&self, filter: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, Status> {
        let wanted = filter
            .and_then(|filter| filter.image)
            .filter(|spec| !spec.image.is_empty());
        if let Some(spec) = wanted {
            let found = self.runtime.status(&ImageRef::new(spec.image), "").await;
            return Ok(found
                .map_err(|error| refuse(&error, ""))?
                .map(image)
                .into_iter()
                .collect());
        }
        let all = self.runtime.list().await.map_err(|error| refuse(&error, ""))?;
        Ok(all.into_iter().map(image).collect())
    }
}

#[async_trait]
impl ImageService for Face {
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        self.answer(Rpc::ImageStatus, request, async |request: v1::ImageStatusRequest| {
            let name = reference(request.image)?;
            let found = self.runtime.status(&name, "").await;
            Ok(v1::ImageStatusResponse {
                image: found.map_err(|error| refuse(&error, ""))?.map(image),
                ..v1::ImageStatusResponse::default()
            })
        })
        .await
    }

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        self.answer(Rpc::ListImages, request, async |request: v1::ListImagesRequest| {
            let images = self.images(request.filter).await?;
            Ok(v1::ListImagesResponse { images })
        })
        .await
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<BoxStream<v1::StreamImagesResponse>>, Status> {
        self.in_pieces(
            Rpc::StreamImages,
            request,
            async |request: v1::StreamImagesRequest| self.images(request.filter).await,
            |images| v1::StreamImagesResponse { images },
        )
        .await
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        self.answer(Rpc::PullImage, request, async |request: v1::PullImageRequest| {
            let name = reference(request.image)?;
            let auth = request
                .auth
                .map(|auth| RegistryAuth::basic(auth.username, auth.password));
            let mut pull = PullRequest::new(&name);
            if let Some(auth) = &auth {
                pull = pull.with_auth(auth);
            }
            let pulled = self.runtime.pull(pull, &IgnoreProgress).await;
            Ok(v1::PullImageResponse {
                image_ref: pulled.map_err(|error| refuse(&error, ""))?.to_string(),
            })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        self.answer(Rpc::RemoveImage, request, async |request: v1::RemoveImageRequest| {
            let name = reference(request.image)?;
            let found = self.runtime.lock().images.id(&name.name);
            if !found.is_empty() {
                let removed = self.runtime.remove(&found.into()).await;
                removed.map_err(|error| refuse(&error, ""))?;
            }
            Ok(v1::RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        request: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        self.answer(Rpc::ImageFsInfo, request, async |_| {
            let found = self.runtime.filesystems().await.map_err(|error| refuse(&error, ""))?;
            let (now, used) = {
                let state = self.runtime.lock();
                (state.clock.now(), state.images.used_bytes())
            };
            let usage = |path: &std::path::PathBuf, bytes| v1::FilesystemUsage {
                timestamp: nanos(now),
                fs_id: Some(v1::FilesystemIdentifier {
                    mountpoint: path.display().to_string(),
                }),
                used_bytes: Some(v1::UInt64Value { value: bytes }),
                inodes_used: Some(v1::UInt64Value { value: 1 }),
            };
            Ok(v1::ImageFsInfoResponse {
                image_filesystems: found.images.iter().map(|path| usage(path, used)).collect(),
                container_filesystems: found.containers.iter().map(|path| usage(path, 0)).collect(),
            })
        })
        .await
    }
}

impl Face {
    /// A list that is answered in pieces.
    pub(crate) async fn in_pieces<Q, T, A, F>(
        &self,
        rpc: Rpc,
        request: Request<Q>,
        list: impl FnOnce(Q) -> F,
        piece: impl Fn(Vec<T>) -> A,
    ) -> Result<Response<BoxStream<A>>, Status>
    where
        Q: std::fmt::Debug,
        T: Send + 'static,
        A: std::any::Any + Send,
        F: Future<Output = Result<Vec<T>, Status>>,
    {
        if !self.options.list_streams {
            return Err(Status::unimplemented(format!("unknown method {}", rpc.name())));
        }
        let items = self.answer(rpc, request, list).await?.into_inner();
        Ok(pieces(self, items, piece))
    }
}
