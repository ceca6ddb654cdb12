//! The contract of image services, with a registry that wants credentials.

use std::sync::Mutex;
use std::time::Duration;

use kubelet_core::{ImageRef, RegistryAuth};
use kubelet_cri::CriRuntime;
use kubelet_testing::contract::ImageFixture;
use kubelet_testing::{Containerd, OciArchive, PrivateContainerd, PrivateRegistry};
use tokio::net::{TcpListener, TcpStream};

/// How long the slow way to the registry takes for each connection.
const SLOWNESS: Duration = Duration::from_millis(1500);

/// The containerd of all promises of one test; out while it is killed or started.
type Shared = Mutex<Option<PrivateContainerd>>;

/// What a test has of the registry.
#[derive(Clone)]
struct Place {
    endpoint: String,
    image: String,
    other: String,
    /// The same registry, over a slow line.
    slow: String,
    missing: String,
    auth: RegistryAuth,
}

async fn make(place: &Place, containerd: &'static Shared) -> (CriRuntime, ImageFixture) {
    let images = CriRuntime::connect(&place.endpoint).await.unwrap();
    let image = |name: &String| ImageRef::new(name.as_str());
    let fixture = ImageFixture::new(image(&place.image), image(&place.other), image(&place.missing))
        .auth(place.auth.clone())
        .slow(image(&place.slow), SLOWNESS)
        .outage(
            move || async {
                let mut instance = containerd.lock().unwrap().take().unwrap();
                instance.kill().await.unwrap();
                *containerd.lock().unwrap() = Some(instance);
            },
            move || async {
                let mut instance = containerd.lock().unwrap().take().unwrap();
                instance.restart().await.unwrap();
                *containerd.lock().unwrap() = Some(instance);
            },
        );
    (images, fixture)
}

/// Relays connections to the registry, each after a while.
async fn slow_line(listener: TcpListener, registry: String) {
    while let Ok((mut near, _)) = listener.accept().await {
        let registry = registry.clone();
        // The test's runtime ends it.
        #[expect(clippy::disallowed_methods, reason = "ends with the runtime of the test")]
        tokio::spawn(async move {
            tokio::time::sleep(SLOWNESS).await;
            if let Ok(mut far) = TcpStream::connect(registry).await {
                // Either end may close it at any time.
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            }
        });
    }
}

fn with_registry(version: Containerd, test: &str, containerd: &Shared, check: impl FnOnce(Place)) {
    let tokio = tokio::runtime::Runtime::new().unwrap();
    let Some((registry, place)) = tokio.block_on(async {
        let registry = PrivateRegistry::start_or_skip(test).await?;
        let instance = PrivateContainerd::start_or_skip(version, test).await?;
        let image = |text: &str| OciArchive::busybox().unwrap().layer().file("/which", 0o644, text);
        let push = async |name: &str| registry.push(&image(name), name, "1").await.unwrap();
        let line = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place {
            endpoint: instance.endpoint(),
            image: push("team/image").await,
            other: push("team/other").await,
            slow: push("team/slow")
                .await
                .replace(registry.address(), &line.local_addr().unwrap().to_string()),
            missing: format!("{}/team/missing:1", registry.address()),
            auth: RegistryAuth::basic(registry.user(), registry.password()),
        };
        #[expect(clippy::disallowed_methods, reason = "ends with the runtime of the test")]
        tokio::spawn(slow_line(line, registry.address().to_owned()));
        *containerd.lock().unwrap() = Some(instance);
        Some((registry, place))
    }) else {
        return;
    };
    check(place);
    let instance = containerd.lock().unwrap().take().unwrap();
    tokio.block_on(async {
        instance.stop().await.unwrap();
        registry.stop().await.unwrap();
    });
}

macro_rules! keeps_the_contract {
    ($name:ident, $version:expr) => {
        mod $name {
            use std::sync::{Mutex, OnceLock};

            use super::{Containerd, CriRuntime, ImageFixture, Place, Shared, with_registry};

            static PLACE: OnceLock<Place> = OnceLock::new();
            static CONTAINERD: Shared = Mutex::new(None);

            async fn make() -> Option<(CriRuntime, ImageFixture)> {
                Some(super::make(PLACE.get()?, &CONTAINERD).await)
            }

            kubelet_testing::image_contract!(make, fn check);

            #[test]
            fn keeps_the_contract_of_image_services() {
                with_registry($version, stringify!($name), &CONTAINERD, |place| {
                    assert!(PLACE.set(place).is_ok());
                    check();
                });
            }
        }
    };
}

keeps_the_contract!(containerd_1_6, Containerd::V1_6);
keeps_the_contract!(containerd_2, Containerd::V2);
