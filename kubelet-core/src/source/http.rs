//! Static pods from a URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{InvalidManifest, Origin, PodSource, RawPod, SourceContext, SourceError, SourceItem, SourceKind};
use crate::fnv::fnv1a_128;
use crate::http::{BoundedRequest, BoundedResponse, HttpClient};
use crate::ids::{PodKey, SourceName};
use crate::manifest::{Item, ManifestKind, decode_items, manifest_kind};

/// Reads a Pod or a PodList from a URL, again and again. Its name is `http`.
///
/// - The first look is made at once. A look takes at most 10 s, a body is at most 10 MiB.
/// - Any status but 200, an empty body and a failed request are [`SourceItem::Trouble`]: the pods stay as they are. A
///   body that did not change is not read again, even if it is bad.
/// - A bad item of a list hurts only itself. A body that is no list of pods at all is reported as one invalid manifest.
///
/// Source: kubelet 1.36, `config/http.go`, which takes an empty body for "no pods" and lets one bad item spoil a list.
#[derive(Clone)]
pub struct HttpSource {
    name: SourceName,
    url: Arc<str>,
    client: Arc<dyn HttpClient>,
    period: Duration,
    headers: Vec<(String, String)>,
}

impl HttpSource {
    /// Looks at `url` every 20 s.
    pub fn new(url: impl Into<Arc<str>>, client: impl HttpClient) -> Self {
        Self {
            name: SourceName::from("http"),
            url: url.into(),
            client: Arc::new(client),
            period: Duration::from_secs(20),
            headers: Vec::new(),
        }
    }

    /// Sets the time from one look to the next.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Adds a header to each request; a name may repeat.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header values may be secrets.
        f.debug_struct("HttpSource")
            .field("url", &self.url)
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

impl PodSource for HttpSource {
    fn name(&self) -> &SourceName {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Static
    }

    fn open(&self, cx: SourceContext) -> BoxStream<'static, SourceItem> {
        let poller = Poller {
            source: self.clone(),
            stop: cx.stop,
            due: Instant::now(),
            body: None,
            trouble: None,
        };
        stream::unfold(poller, Poller::next).boxed()
    }
}

struct Poller {
    source: HttpSource,
    stop: CancellationToken,
    due: Instant,
    /// Hash of the last body that was told of, good or bad.
    body: Option<u128>,
    /// The last trouble, so that it is not told again and again.
    trouble: Option<String>,
}

impl Poller {
    async fn next(mut self) -> Option<(SourceItem, Self)> {
        loop {
            let mut request = BoundedRequest::get(&*self.source.url);
            request.headers.clone_from(&self.source.headers);
            let look = async {
                sleep_until(self.due).await;
                self.source.client.send(request).await
            };
            let answer = tokio::select! {
                biased; // stopping wins over an answer
                () = self.stop.cancelled() => return None,
                answer = look => answer,
            };
            self.due = Instant::now() + self.source.period;
            let item = match answer {
                Ok(response) => self.read(&response),
                Err(error) => Err(SourceError::unreadable(&*self.source.url, error)),
            };
            let item = match item {
                Ok(item) => {
                    self.trouble = None;
                    item
                }
                Err(trouble) => self.tell(trouble),
            };
            if let Some(item) = item {
                return Some((item, self));
            }
        }
    }

    fn read(&mut self, response: &BoundedResponse) -> Result<Option<SourceItem>, SourceError> {
        let url = &self.source.url;
        let trouble = |text: String| SourceError::unreadable(&**url, text);
        if response.status != 200 {
            return Err(trouble(format!("status {} instead of 200", response.status)));
        }
        if response.truncated {
            return Err(trouble(format!("the body has more than {} bytes", response.body.len())));
        }
        if response.body.trim_ascii().is_empty() {
            return Err(trouble("the body is empty".to_owned()));
        }
        let hash = fnv1a_128(&response.body);
        if self.body == Some(hash) {
            return Ok(None);
        }
        self.body = Some(hash);
        Ok(Some(match decode_items(&response.body) {
            Ok(items) => snapshot(url, &response.body, items),
            Err(error) => {
                let error = SourceError::invalid(&**url, error.to_string());
                SourceItem::Invalid(InvalidManifest::new(Origin::Url(Arc::clone(url), 0), None, error))
            }
        }))
    }

    fn tell(&mut self, trouble: SourceError) -> Option<SourceItem> {
        let text = crate::error::error_chain(&trouble);
        if self.trouble.as_ref() == Some(&text) {
            return None;
        }
        self.trouble = Some(text);
        // The same body as before then tells that the trouble is over.
        self.body = None;
        Some(SourceItem::Trouble(trouble))
    }
}

fn snapshot(url: &Arc<str>, body: &[u8], items: Vec<Item>) -> SourceItem {
    let single = items.len() == 1;
    let mut pods = Vec::new();
    let mut invalid = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let origin = Origin::Url(Arc::clone(url), index);
        match item {
            Ok(decoded) => {
                let mut raw = RawPod::new(decoded.pod);
                raw.text = text_of(&raw.pod, body, single);
                raw.origin = Some(origin);
                raw.unknown_fields = decoded.unknown_fields;
                raw.locator = Some(decoded.locator);
                pods.push(raw);
            }
            Err(bad) => {
                let namespace = bad.namespace.unwrap_or_else(|| "default".to_owned());
                let key = bad.name.map(|name| PodKey::new(namespace, name));
                let error = SourceError::invalid(origin.to_string(), bad.error.to_string());
                invalid.push(InvalidManifest::new(origin, key, error));
            }
        }
    }
    SourceItem::Snapshot {
        pods,
        invalid,
        remembered: false,
    }
}

/// The text of one pod alone: a list has one text for all, and would be kept once for each.
fn text_of(pod: &Pod, body: &[u8], single: bool) -> Option<Arc<[u8]>> {
    if single && matches!(manifest_kind(body), Ok(ManifestKind::Pod)) {
        return Some(Arc::from(body));
    }
    // A pod that was decoded can be encoded; were it not so, only its last good version would be missing.
    serde_json::to_vec(pod).ok().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use async_trait::async_trait;
    use futures::StreamExt;
    use futures::stream::BoxStream;
    use tokio::time::{Instant, timeout};
    use tokio_util::sync::CancellationToken;

    use super::HttpSource;
    use crate::clock::SystemClock;
    use crate::http::{BoundedRequest, BoundedResponse, HttpClient, HttpError};
    use crate::manifest::decode_pod;
    use crate::source::{Origin, PodSource, SourceContext, SourceItem};

    /// Gives the scripted answers in turn, the last one for ever; an empty script never answers.
    #[derive(Clone, Debug, Default)]
    struct Script {
        answers: Arc<Mutex<VecDeque<(u16, String)>>>,
        asked: Arc<Mutex<Vec<BoundedRequest>>>,
    }

    #[async_trait]
    impl HttpClient for Script {
        async fn send(&self, req: BoundedRequest) -> Result<BoundedResponse, HttpError> {
            self.asked.lock().unwrap().push(req);
            let answer = {
                let mut answers = self.answers.lock().unwrap();
                if answers.len() > 1 {
                    answers.pop_front()
                } else {
                    answers.front().cloned()
                }
            };
            match answer {
                Some((status, body)) => Ok(BoundedResponse::new(status, body)),
                None => std::future::pending().await,
            }
        }
    }

    fn pod(name: &str) -> String {
        format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},"spec":{{"containers":[]}}}}"#)
    }

    fn list(items: &[&str]) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"PodList","items":[{}]}}"#,
            items.join(",")
        )
    }

    fn open(script: &Script, stop: &CancellationToken) -> BoxStream<'static, SourceItem> {
        let source = HttpSource::new("http://x/y", script.clone()).header("a", "b");
        source.open(SourceContext::new("node".into(), Arc::new(SystemClock), stop.clone()))
    }

    fn script(answers: &[(u16, &str)]) -> Script {
        let script = Script::default();
        let answers = answers.iter().map(|(status, body)| (*status, (*body).to_owned()));
        script.answers.lock().unwrap().extend(answers);
        script
    }

    fn names(item: &SourceItem) -> Vec<String> {
        let SourceItem::Snapshot { pods, .. } = item else {
            panic!("{item:?} is no snapshot");
        };
        pods.iter().map(|raw| raw.pod.metadata.name.clone().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_full_answer_is_a_truth_and_an_unchanged_one_no_news() {
        let (a, b) = (pod("a"), pod("b"));
        let script = script(&[
            (200, &a),
            (200, &a),
            (404, &b),
            (404, &b),
            (200, ""),
            (200, " \n"),
            (200, &a),
            (200, &b),
        ]);
        let mut items = open(&script, &CancellationToken::new());
        let start = Instant::now();
        let first = items.next().await.unwrap();
        assert_eq!((names(&first), start.elapsed()), (vec!["a".into()], Duration::ZERO));
        let trouble = items.next().await.unwrap();
        assert!(matches!(&trouble, SourceItem::Trouble(_)), "{trouble:?}");
        assert_eq!(start.elapsed(), Duration::from_secs(40));
        assert!(
            matches!(items.next().await.unwrap(), SourceItem::Trouble(_)),
            "an empty body"
        );
        assert_eq!(names(&items.next().await.unwrap()), ["a"], "the trouble is over");
        assert_eq!(names(&items.next().await.unwrap()), ["b"]);
        assert_eq!(start.elapsed(), Duration::from_secs(140));
        let asked = script.asked.lock().unwrap();
        assert_eq!(asked[0].headers, [("a".to_owned(), "b".to_owned())]);
        assert_eq!(
            (asked[0].timeout, asked[0].body_limit_bytes),
            (Duration::from_secs(10), 10 << 20)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_item_hurts_only_itself_and_a_bad_body_nothing() {
        let bad = r#"{"metadata":{"name":"bad"},"spec":{"containers":7}}"#;
        let script = script(&[
            (200, &list(&[&pod("a"), bad, &pod("c")])),
            (200, "{"),
            (200, &list(&[])),
        ]);
        let mut items = open(&script, &CancellationToken::new());
        let first = items.next().await.unwrap();
        assert_eq!(names(&first), ["a", "c"]);
        let SourceItem::Snapshot { pods, invalid, .. } = first else {
            unreachable!()
        };
        assert_eq!(invalid[0].origin, Origin::Url("http://x/y".into(), 1));
        assert_eq!(invalid[0].pod.as_ref().unwrap().to_string(), "default/bad");
        assert!(
            invalid[0].error.to_string().contains("items[1].spec.containers"),
            "{}",
            invalid[0].error
        );
        let text = pods[1].text.as_ref().unwrap();
        assert_eq!(
            decode_pod(text).unwrap().pod,
            pods[1].pod,
            "each pod has a text of its own"
        );
        assert!(matches!(items.next().await.unwrap(), SourceItem::Invalid(_)));
        assert!(names(&items.next().await.unwrap()).is_empty());
        assert!(timeout(Duration::from_secs(3600), items.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn stop_ends_a_look_that_hangs() {
        let stop = CancellationToken::new();
        let mut items = open(&Script::default(), &stop);
        assert!(timeout(Duration::from_secs(1), items.next()).await.is_err());
        stop.cancel();
        assert!(items.next().await.is_none());
    }
}
