//! The promises of [`ImageService`].
//!
//! Each function checks one; its first line is the promise, in the words of the trait.

use std::time::Duration;

use futures::future::{join, join3};
use kubelet_core::{IgnoreProgress, ImageId, ImageRef, ImageService, PullRequest, RegistryAuth, RuntimeError};

use crate::contract::check::{must, skip, within};
use crate::contract::fixture::ImageFixture;

fn request<'a>(fixture: &'a ImageFixture, image: &'a ImageRef) -> PullRequest<'a> {
    let request = PullRequest::new(image);
    match &fixture.auth {
        Some(auth) => request.with_auth(auth),
        None => request,
    }
}

async fn pull(images: &dyn ImageService, fixture: &ImageFixture, image: &ImageRef) -> ImageId {
    let pull = images.pull(request(fixture, image), &IgnoreProgress);
    must(&format!("pull {image}"), within("a pull", fixture.patience, pull).await)
}

/// A successful pull makes `status` of the same reference answer with that image.
///
/// # Panics
/// If the promise is broken.
pub async fn a_successful_pull_makes_status_answer_with_that_image(images: &dyn ImageService, fixture: &ImageFixture) {
    // Twice: what is present is made current.
    for _ in 0..2 {
        let id = pull(images, fixture, &fixture.image).await;
        let found = must("read the status of an image", images.status(&fixture.image, "").await);
        assert_eq!(found.map(|image| image.id), Some(id.clone()), "status after a pull");
        let listed = must("list images", images.list().await);
        assert!(
            listed.iter().any(|image| image.id == id),
            "a pulled image is not listed"
        );
    }
}

/// Pulls may overlap each other and every other call.
///
/// # Panics
/// If the promise is broken.
pub async fn pulls_may_overlap_each_other_and_every_other_call(images: &dyn ImageService, fixture: &ImageFixture) {
    let reads = async {
        must("list images", images.list().await);
        must("read where images are kept", images.filesystems().await);
        must("read the status of an image", images.status(&fixture.missing, "").await)
    };
    let twice = join(
        pull(images, fixture, &fixture.image),
        pull(images, fixture, &fixture.image),
    );
    let ((a, b), other, missing) = join3(twice, pull(images, fixture, &fixture.other), reads).await;
    assert_eq!(a, b, "two pulls of one image");
    assert_ne!(a, other, "pulls of two images");
    assert!(missing.is_none(), "an image that no registry has is present");
}

/// A pull ends when its future is dropped; what is half there is of no harm to a later one.
///
/// # Panics
/// If the promise is broken.
pub async fn a_pull_ends_when_its_future_is_dropped(images: &dyn ImageService, fixture: &ImageFixture) {
    let Some((slow, takes)) = &fixture.slow else {
        return skip(
            "a_pull_ends_when_its_future_is_dropped",
            "the fixture has no image that is slow to pull",
        );
    };
    let cut = Duration::from_millis(100);
    let pulled = tokio::time::timeout(cut, images.pull(request(fixture, slow), &IgnoreProgress)).await;
    assert!(pulled.is_err(), "the slow image was pulled, or failed, within {cut:?}");
    tokio::time::sleep(*takes).await;
    let found = must("read the status of an image", images.status(slow, "").await);
    assert!(found.is_none(), "a pull went on after its future was dropped");
    pull(images, fixture, slow).await;
}

/// Removing an image that is gone succeeds.
///
/// # Panics
/// If the promise is broken.
pub async fn removing_an_image_that_is_gone_succeeds(images: &dyn ImageService, fixture: &ImageFixture) {
    let id = pull(images, fixture, &fixture.image).await;
    for time in ["once", "again"] {
        must(&format!("remove an image {time}"), images.remove(&id).await);
        let found = must("read the status of an image", images.status(&fixture.image, "").await);
        assert!(found.is_none(), "an image is present that was removed {time}");
    }
}

/// An absent image is `Ok(None)`; `Unavailable` never stands for it.
///
/// # Panics
/// If the promise is broken.
pub async fn an_absent_image_is_none(images: &dyn ImageService, fixture: &ImageFixture) {
    let found = must(
        "read the status of an absent image",
        images.status(&fixture.missing, "").await,
    );
    assert!(found.is_none(), "an image that no registry has is present");
}

/// `Unavailable` if there was no answer, never an absent image instead.
///
/// # Panics
/// If the promise is broken.
pub async fn no_answer_is_never_an_absent_image(images: &dyn ImageService, fixture: &ImageFixture) {
    let Some((down, up)) = &fixture.outage else {
        return skip(
            "no_answer_is_never_an_absent_image",
            "the fixture cannot take the service away",
        );
    };
    pull(images, fixture, &fixture.image).await;
    down(()).await;
    let status = images.status(&fixture.image, "").await.map(|image| image.is_some());
    let list = images.list().await.map(|list| !list.is_empty());
    up(()).await;
    for (op, answer) in [("status", status), ("list", list)] {
        let unavailable = matches!(answer, Err(RuntimeError::Unavailable { .. }));
        assert!(unavailable, "{op} of a service that is away gives {answer:?}");
    }
}

/// A pull that cannot succeed as asked is `Refused`, with a message that says what is missing where.
///
/// # Panics
/// If the promise is broken.
pub async fn a_pull_that_cannot_succeed_is_refused_with_a_message(images: &dyn ImageService, fixture: &ImageFixture) {
    let pull = images.pull(request(fixture, &fixture.missing), &IgnoreProgress);
    match within("a pull", fixture.patience, pull).await {
        Err(RuntimeError::Refused { message, .. }) => assert!(!message.is_empty(), "the message is empty"),
        other => panic!("a pull of an image that no registry has gives {other:?}"),
    }
}

/// A registry is shown the credentials of the request, and no others.
///
/// # Panics
/// If the promise is broken.
pub async fn a_registry_is_shown_the_credentials_of_the_request(images: &dyn ImageService, fixture: &ImageFixture) {
    let Some(auth) = &fixture.auth else {
        return skip(
            "a_registry_is_shown_the_credentials_of_the_request",
            "the fixture has no registry that wants credentials",
        );
    };
    let wrong = RegistryAuth::basic(auth.username.clone(), format!("not {}", auth.password));
    let bare = PullRequest::new(&fixture.image);
    // Also once others have shown what the registry wants.
    for _ in 0..2 {
        for request in [bare, bare.with_auth(&wrong)] {
            match within("a pull", fixture.patience, images.pull(request, &IgnoreProgress)).await {
                Err(RuntimeError::Refused { message, .. }) => {
                    assert!(!message.contains(&wrong.password), "the message has the password");
                }
                other => panic!(
                    "a pull with {:?} gives {other:?}",
                    request.auth.map(|auth| &auth.password)
                ),
            }
        }
        pull(images, fixture, &fixture.image).await;
    }
}

/// Makes one `#[test]` of each promise of [`ImageService`], as
/// [`runtime_contract!`](crate::runtime_contract) does, or one function of all: takes an async function that answers
/// `Some((service, fixture))` with an [`ImageFixture`](crate::contract::ImageFixture), or nothing.
#[macro_export]
macro_rules! image_contract {
    ($make:path) => {
        $crate::image_contract! { @promises each [$make] }
    };
    ($make:path, fn $name:ident) => {
        $crate::image_contract! { @promises all [$make, $name] }
    };
    (@promises $form:ident $with:tt) => {
        $crate::image_contract! { @$form $with
            a_pull_ends_when_its_future_is_dropped
            a_pull_that_cannot_succeed_is_refused_with_a_message
            a_registry_is_shown_the_credentials_of_the_request
            a_successful_pull_makes_status_answer_with_that_image
            an_absent_image_is_none
            no_answer_is_never_an_absent_image
            pulls_may_overlap_each_other_and_every_other_call
            removing_an_image_that_is_gone_succeeds
        }
    };
    (@each [$make:path] $($promise:ident)*) => { $(
        #[test]
        fn $promise() {
            $crate::contract::check_images(stringify!($promise), $make, $crate::contract::images::$promise);
        }
    )* };
    (@all [$make:path, $name:ident] $($promise:ident)*) => {
        fn $name() { $(
            $crate::contract::check_images(stringify!($promise), $make, $crate::contract::images::$promise);
        )* }
    };
}
