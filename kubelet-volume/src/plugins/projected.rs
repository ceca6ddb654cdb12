//! Several sources in one volume.
//!
//! Source: kubelet 1.36, `projected/projected.go`.

use std::time::Duration;

use async_trait::async_trait;
use kubelet_core::k8s_openapi::api::core::v1::{
    ProjectedVolumeSource, ServiceAccountTokenProjection, VolumeProjection,
};
use kubelet_core::{Token, TokenRequest, error_chain, jittered};
use tokio::time::Instant;

use super::payload::{self, Backing, DEFAULT_MODE, Parts};
use super::{config_map, downward_api, secret, trust};
use crate::plugin::{Placed, PluginFeatures, Refresh, SetUp, TearDown, VolumeFault, VolumePlugin, VolumeSpec};

/// How long a token is asked for of which nothing is said. The API fills that in.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(3600);
/// A token is not kept longer, however long it is valid. Source: kubelet 1.36, `token_manager.go`.
const LONGEST_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Tokens are replaced a little earlier, so that not all are at once.
const JITTER: Duration = Duration::from_secs(10);
/// A source that gives tokens which have almost ended is not asked all the time.
const SOONEST: Duration = Duration::from_secs(10);
/// How long what a list gave is kept. Source: kubelet 1.36, `clustertrustbundle_manager.go`.
const LIST_KEPT: Duration = Duration::from_secs(300);
/// The mode of what is for one user alone.
const PRIVATE_MODE: i32 = 0o600;

/// Volumes of type `projected`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projected;

impl Parts {
    /// It is to be put together again that soon.
    fn again_in(&mut self, after: Duration) {
        let at = Instant::now() + after;
        self.again_at = Some(self.again_at.map_or(at, |before| before.min(at)));
    }

    /// With more files, which replace those of the same paths.
    fn add(&mut self, more: Parts) {
        self.files.extend(more.files);
        self.follow(more.refresh);
    }

    fn follow(&mut self, refresh: Refresh) {
        self.refresh = match (self.refresh, refresh) {
            (Refresh::Pod, _) | (_, Refresh::Pod) => Refresh::Pod,
            (Refresh::Objects, _) | (_, Refresh::Objects) => Refresh::Objects,
            _ => Refresh::Never,
        };
    }
}

fn source<'a>(volume: &VolumeSpec<'a>) -> Option<&'a ProjectedVolumeSource> {
    match volume {
        VolumeSpec::Inline(volume) => volume.projected.as_ref(),
        VolumeSpec::Persistent { .. } => None,
    }
}

#[async_trait]
impl VolumePlugin for Projected {
    fn name(&self) -> &'static str {
        "kubernetes.io/projected"
    }

    fn takes(&self, volume: &VolumeSpec<'_>) -> bool {
        source(volume).is_some()
    }

    fn features(&self) -> PluginFeatures {
        payload::features(false)
    }

    async fn set_up(&self, cx: &SetUp<'_>) -> Result<Placed, VolumeFault> {
        let Some(of) = source(&cx.volume) else {
            return Err(VolumeFault::new("it is not projected"));
        };
        let mode = of.default_mode.unwrap_or(DEFAULT_MODE);
        let mut parts = Parts::default();
        let mut failed = Vec::new();
        for source in of.sources.iter().flatten() {
            if let Err(fault) = add(cx, source, mode, &mut parts).await {
                failed.push(error_chain(&fault));
            }
        }
        let parts = if failed.is_empty() {
            Ok(parts)
        } else {
            Err(VolumeFault::new(failed.join("; ")))
        };
        payload::put(cx, Backing::Memory, parts).await
    }

    async fn tear_down(&self, cx: &TearDown<'_>) -> Result<(), VolumeFault> {
        payload::remove(cx).await
    }
}

/// Adds the files of one source; those of later ones replace earlier ones of the same path.
async fn add(cx: &SetUp<'_>, source: &VolumeProjection, mode: i32, parts: &mut Parts) -> Result<(), VolumeFault> {
    if let Some(of) = &source.secret {
        let named = (&*of.name, of.optional.unwrap_or(false));
        parts.add(secret::parts(cx, named, of.items.as_deref(), mode).await?);
    } else if let Some(of) = &source.config_map {
        let named = (&*of.name, of.optional.unwrap_or(false));
        parts.add(config_map::parts(cx, named, of.items.as_deref(), mode).await?);
    } else if let Some(of) = &source.downward_api {
        parts.add(downward_api::parts(cx, of.items.as_deref().unwrap_or_default(), mode)?);
    } else if let Some(of) = &source.service_account_token {
        add_token(cx, of, mode, parts).await?;
    } else if let Some(of) = &source.cluster_trust_bundle {
        let certificates = trust::certificates(cx, of).await?;
        let by_name = of.name.as_deref().is_some_and(|name| !name.is_empty());
        parts.follow(Refresh::Objects);
        if !by_name {
            parts.again_in(LIST_KEPT);
        }
        parts
            .files
            .insert(of.path.clone(), private(cx, certificates.into_bytes(), mode));
    } else if source.pod_certificate.is_some() {
        return Err(VolumeFault::new("pod certificates cannot be had on this node"));
    } else {
        return Err(VolumeFault::new("a source of the volume is of no type that is known"));
    }
    Ok(())
}

async fn add_token(
    cx: &SetUp<'_>,
    of: &ServiceAccountTokenProjection,
    mode: i32,
    parts: &mut Parts,
) -> Result<(), VolumeFault> {
    let account = cx.pod.spec().service_account_name.as_deref();
    let account = account.filter(|name| !name.is_empty()).unwrap_or("default");
    let lifetime = of.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let lifetime = lifetime.map_or(DEFAULT_LIFETIME, Duration::from_secs);
    let mut request = TokenRequest::new(&*cx.pod.key().namespace, account)
        .with_lifetime(lifetime)
        .bound_to(cx.pod);
    if let Some(audience) = of.audience.as_deref().filter(|audience| !audience.is_empty()) {
        request = request.with_audience(audience);
    }
    let token = cx.token(&request).await.map_err(|error| {
        let (pod, why) = (cx.pod.key(), error_chain(&error));
        VolumeFault::new(format!(
            "failed to fetch token of service account {account:?} for pod {pod}: {why}"
        ))
    })?;
    let jitter = jittered(JITTER, 1.0, &*cx.node.context.random).saturating_sub(JITTER);
    if let Some(after) = replaced_after(&token, lifetime, cx.node.context.clock.now(), jitter) {
        parts.again_in(after);
    }
    parts
        .files
        .insert(of.path.clone(), private(cx, token.value.into_bytes(), mode));
    Ok(())
}

/// When a token is replaced: once a fifth of its life is left, and after a day in any case.
fn replaced_after(
    token: &Token,
    lifetime: Duration,
    now: kubelet_core::jiff::Timestamp,
    jitter: Duration,
) -> Option<Duration> {
    let left = Duration::try_from(token.expires_at?.duration_since(now)).unwrap_or_default();
    // Of one that was given again less is left than it was asked for, and it may have been asked for longer than it got.
    let whole = lifetime.max(left);
    // Where the clock of the node is behind, more seems to be left than was asked for.
    let by_end = left.saturating_sub(whole / 5).min(lifetime - lifetime / 5);
    let by_age = LONGEST_KEPT.saturating_sub(whole.saturating_sub(left));
    Some(by_end.min(by_age).saturating_sub(jitter).max(SOONEST))
}

/// A file for the user of the pod's containers alone, where that is one; else for whom the mode says.
fn private(cx: &SetUp<'_>, bytes: Vec<u8>, mode: i32) -> crate::ground::atomic_writer::FileProjection {
    let of = cx.ownership;
    let mode = if of.fs_user.is_some() || of.fs_group.is_some() {
        PRIVATE_MODE
    } else {
        mode
    };
    let mut file = payload::file(bytes, mode);
    file.owner = of.fs_user;
    file
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_core::Token;
    use kubelet_core::jiff::Timestamp;

    use super::replaced_after;

    /// kubernetes/kubernetes#92368: the clock of the node was days off.
    #[test]
    fn a_token_is_replaced_in_time_although_the_clock_of_the_node_is_off() {
        let day = 24 * 3600;
        for off in [-400 * day, -2 * day, -3600, -600, 0, 600, 3600, 2 * day, 400 * day] {
            let now = Timestamp::from_second(1_700_000_000 + off).unwrap();
            let token = Token::new("t", Some(Timestamp::from_second(1_700_000_000 + 3600).unwrap()));
            let after = replaced_after(&token, Duration::from_secs(3600), now, Duration::ZERO).unwrap();
            assert!((10..=2880).contains(&after.as_secs()), "{off}: {after:?}");
        }
    }

    #[test]
    fn a_token_is_replaced_before_its_end_and_each_day() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let after = |left: i64, lifetime: u64, jitter: u64| {
            let token = Token::new("t", Some(Timestamp::from_second(1_700_000_000 + left).unwrap()));
            let after = replaced_after(&token, Duration::from_secs(lifetime), now, Duration::from_secs(jitter));
            after.unwrap().as_secs()
        };
        assert_eq!(after(3600, 3600, 0), 2880);
        assert_eq!(after(3600, 3600, 7), 2873);
        assert_eq!(after(1800, 3600, 0), 1080, "half of its life is over");
        assert_eq!(after(500, 3600, 0), 10, "not all the time");
        assert_eq!(after(-5, 3600, 0), 10);
        let days = |days: i64| days * 24 * 3600;
        assert_eq!(after(days(365), 365 * 24 * 3600, 0), 24 * 3600);
        assert_eq!(after(7200, 3600, 0), 2880, "longer than it was asked for");
        let endless = Token::new("t", None);
        assert_eq!(
            replaced_after(&endless, Duration::from_secs(60), now, Duration::ZERO),
            None
        );
    }
}
