//! Hooks that are HTTP requests.

#![allow(clippy::unwrap_used, reason = "tests: a panic is the failure")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::k8s_openapi::api::core::v1::{HTTPGetAction, HTTPHeader, Lifecycle, LifecycleHandler, Pod};
use kubelet_core::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::{BoundedRequest, BoundedResponse, ContainerState, HttpClient, HttpError, StateDir, async_trait};
use kubelet_testing::{ContainerBuilder, FakeRuntime, Op, PodBuilder};
use tokio::time::{Instant, sleep};

use super::harness::{Node, deleted};
use super::life::fake;

/// What comes of a request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16),
    After(Duration),
    PlainHttp,
    Refused,
}

/// Answers as it is told, in order; once it is told nothing more, with 200.
#[derive(Clone, Debug, Default)]
struct Web(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    answers: VecDeque<Answer>,
    asked: Vec<BoundedRequest>,
    open: usize,
}

/// A request that has not been answered; also one whose future was dropped ends.
struct Open<'a>(&'a Web);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().open -= 1;
    }
}

impl Web {
    fn of(answers: impl IntoIterator<Item = Answer>) -> Self {
        let web = Self::default();
        web.0.lock().unwrap().answers.extend(answers);
        web
    }

    fn asked(&self) -> Vec<BoundedRequest> {
        self.0.lock().unwrap().asked.clone()
    }

    fn urls(&self) -> Vec<String> {
        self.asked().into_iter().map(|request| request.url).collect()
    }

    fn open(&self) -> usize {
        self.0.lock().unwrap().open
    }
}

#[async_trait]
impl HttpClient for Web {
    async fn send(&self, req: BoundedRequest) -> Result<BoundedResponse, HttpError> {
        let (answer, limit, url) = {
            let mut script = self.0.lock().unwrap();
            script.open += 1;
            script.asked.push(req.clone());
            let answer = script.answers.pop_front().unwrap_or(Answer::Status(200));
            (answer, req.timeout, req.url)
        };
        let _open = Open(self);
        match answer {
            Answer::Status(status) => Ok(BoundedResponse::new(status, "")),
            Answer::After(after) if after <= limit => {
                sleep(after).await;
                Ok(BoundedResponse::new(200, ""))
            }
            Answer::After(_) => {
                sleep(limit).await;
                Err(HttpError::TimedOut { url, after: limit })
            }
            Answer::PlainHttp => Err(HttpError::PlainHttp { url }),
            Answer::Refused => Err(HttpError::Failed {
                url,
                source: "connection refused".into(),
            }),
        }
    }
}

fn get(port: impl Into<Port>, change: impl FnOnce(&mut HTTPGetAction)) -> LifecycleHandler {
    let mut http = HTTPGetAction {
        path: Some("/hook?full=1".to_owned()),
        port: port.into().0,
        ..HTTPGetAction::default()
    };
    change(&mut http);
    LifecycleHandler {
        http_get: Some(http),
        ..LifecycleHandler::default()
    }
}

struct Port(IntOrString);

impl From<i32> for Port {
    fn from(port: i32) -> Self {
        Self(IntOrString::Int(port))
    }
}

impl From<&str> for Port {
    fn from(port: &str) -> Self {
        Self(IntOrString::String(port.to_owned()))
    }
}

fn post_start(hook: LifecycleHandler) -> impl FnOnce(ContainerBuilder) -> ContainerBuilder {
    with(Lifecycle {
        post_start: Some(hook),
        ..Lifecycle::default()
    })
}

fn pre_stop(hook: LifecycleHandler) -> impl FnOnce(ContainerBuilder) -> ContainerBuilder {
    with(Lifecycle {
        pre_stop: Some(hook),
        ..Lifecycle::default()
    })
}

fn with(lifecycle: Lifecycle) -> impl FnOnce(ContainerBuilder) -> ContainerBuilder {
    |c| c.host_port(8080).with(|c| c.lifecycle = Some(lifecycle))
}

fn pod(shape: impl FnOnce(ContainerBuilder) -> ContainerBuilder) -> Pod {
    PodBuilder::new("p")
        .uid("u")
        .grace_seconds(30)
        .container("app", shape)
        .build()
}

fn node(runtime: &FakeRuntime, web: &Web) -> Node {
    Node::start_with(runtime, StateDir::in_memory(), |builder| {
        builder.http_client(web.clone())
    })
}

fn running(runtime: &FakeRuntime) -> usize {
    let containers = runtime.containers();
    containers.iter().filter(|c| c.state == ContainerState::Running).count()
}

#[tokio::test(start_paused = true)]
async fn a_hook_asks_its_pod_and_any_answer_will_do() {
    for status in [200, 404, 500, 302] {
        let (runtime, web) = (fake(), Web::of([Answer::Status(status)]));
        let node = node(&runtime, &web);
        let hook = get(8080, |http| {
            http.http_headers = Some(vec![HTTPHeader {
                name: "X-Token".to_owned(),
                value: "a".to_owned(),
            }]);
        });
        node.pods.set(vec![pod(post_start(hook))]).await.unwrap();
        node.running("p").await;
        let ip = node.status("p").unwrap().pod_ip.clone().unwrap();
        let asked = web.asked();
        assert_eq!(asked.len(), 1);
        let request = &asked[0];
        assert_eq!(request.url, format!("http://{ip}:8080/hook?full=1"));
        let headers: Vec<_> = request
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            headers,
            ["User-Agent: kube-lifecycle/1.36", "Accept: */*", "X-Token: a"]
        );
        assert_eq!(
            (request.method.as_str(), request.verify_tls, request.max_redirects),
            ("GET", false, 10)
        );
        assert_eq!(node.events.count("FailedPostStartHook"), 0);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ports_have_names_and_hosts_may_be_others() {
    let (runtime, web) = (fake(), Web::default());
    let node = node(&runtime, &web);
    let named = get("web", |http| {
        http.host = Some("other.example".to_owned());
        http.scheme = Some("HTTPS".to_owned());
        http.path = Some("a b".to_owned());
    });
    let shape =
        |c: ContainerBuilder| post_start(named)(c).with(|c| c.ports.as_mut().unwrap()[0].name = Some("web".to_owned()));
    node.pods.set(vec![pod(shape)]).await.unwrap();
    node.running("p").await;
    assert_eq!(web.urls(), ["https://other.example:8080/a%20b"]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_a_pod_on_the_hosts_network_asks_the_node() {
    let (runtime, web) = (fake(), Web::default());
    let node = node(&runtime, &web);
    let pod = PodBuilder::new("p")
        .uid("u")
        .host_network()
        .container("app", post_start(get(8080, |_| {})))
        .build();
    node.pods.set(vec![pod]).await.unwrap();
    node.running("p").await;
    assert_eq!(web.urls(), ["http://192.0.2.7:8080/hook?full=1"]);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_post_start_hook_that_nobody_answers_restarts_its_container() {
    let nowhere = get("no-such-port", |_| {});
    for (hook, answers, requests) in [(get(8080, |_| {}), vec![Answer::Refused], 2), (nowhere, Vec::new(), 0)] {
        let (runtime, web) = (fake(), Web::of(answers));
        let node = node(&runtime, &web);
        node.pods.set(vec![pod(post_start(hook))]).await.unwrap();
        node.until("failed", |node| node.events.count("FailedPostStartHook") == 1)
            .await;
        node.until("restarted", |node| node.restarts("p", "app") == Some(1))
            .await;
        assert_eq!(web.asked().len(), requests);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_in_plain_http_is_asked_for_in_plain_http_once_more() {
    for falls_back in [true, false] {
        let second = if falls_back {
            Answer::Status(500)
        } else {
            Answer::Refused
        };
        let (runtime, web) = (fake(), Web::of([Answer::PlainHttp, second]));
        let node = node(&runtime, &web);
        let hook = get(8080, |http| {
            http.scheme = Some("HTTPS".to_owned());
            let header = |name: &str| HTTPHeader {
                name: name.to_owned(),
                value: "secret".to_owned(),
            };
            http.http_headers = Some(vec![header("authorization"), header("X-Other")]);
        });
        node.pods.set(vec![pod(post_start(hook))]).await.unwrap();
        node.until("asked", |_| web.asked().len() == 2).await;
        sleep(Duration::from_secs(1)).await;
        let asked = web.asked();
        let (first, second) = (&asked[0], &asked[1]);
        let place = first.url.strip_prefix("https://").unwrap();
        assert_eq!(second.url.strip_prefix("http://"), Some(place));
        let has = |request: &BoundedRequest, wanted: &str| {
            let mut headers = request.headers.iter();
            headers.any(|(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        assert!(has(first, "Authorization") && !has(second, "Authorization") && has(second, "X-Other"));
        let failed = node.events.count("FailedPostStartHook");
        let told = node.events.messages("LifecycleHTTPFallback");
        if falls_back {
            let host = place.split('/').next().unwrap();
            let wanted = format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
            assert_eq!((told, failed), (vec![wanted], 0));
            node.running("p").await;
        } else {
            assert_eq!((told.len(), failed), (0, 1));
        }
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn plain_http_is_tried_once_and_only_after_tls() {
    for (scheme, requests) in [("HTTPS", 2), ("HTTP", 1)] {
        let (runtime, web) = (fake(), Web::of([Answer::PlainHttp; 2]));
        let node = node(&runtime, &web);
        let hook = get(8080, |http| http.scheme = Some(scheme.to_owned()));
        node.pods.set(vec![pod(post_start(hook))]).await.unwrap();
        node.until("failed", |node| node.events.count("FailedPostStartHook") == 1)
            .await;
        assert_eq!(web.asked().len(), requests, "{scheme}");
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_comes_before_the_stop_and_takes_of_its_grace() {
    let (runtime, web) = (fake(), Web::of([Answer::After(Duration::from_secs(12))]));
    let node = node(&runtime, &web);
    let pod = pod(|c| pre_stop(get(8080, |_| {}))(c.args(["ignore-term"])));
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    let begun = Instant::now();
    node.pods.upsert(deleted(pod, 30)).await.unwrap();
    node.until("asked", |_| web.open() == 1).await;
    assert_eq!(web.asked()[0].timeout.as_secs_f64().ceil(), 30.0);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(runtime.count(Op::StopContainer), 0, "the hook still runs");
    node.until("stopped", |_| running(&runtime) == 0).await;
    assert!((30..33).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(node.events.count("FailedPreStopHook"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_has_no_more_than_the_grace() {
    let (runtime, web) = (fake(), Web::of([Answer::After(Duration::from_secs(100_000))]));
    let node = node(&runtime, &web);
    let pod = pod(pre_stop(get(8080, |_| {})));
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    let begun = Instant::now();
    node.pods.upsert(deleted(pod, 30)).await.unwrap();
    node.until("stopped", |_| running(&runtime) == 0).await;
    assert!((30..33).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(node.events.count("FailedPreStopHook"), 1);
    assert_eq!(web.open(), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_that_is_cut_ends_a_request() {
    let (runtime, web) = (fake(), Web::of([Answer::After(Duration::from_secs(100_000))]));
    let node = node(&runtime, &web);
    let pod = pod(pre_stop(get(8080, |_| {})));
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    node.pods.upsert(deleted(pod.clone(), 30)).await.unwrap();
    node.until("asked", |_| web.open() == 1).await;
    let cut = Instant::now();
    node.pods.upsert(deleted(pod, 1)).await.unwrap();
    node.until("stopped", |_| running(&runtime) == 0).await;
    assert!(cut.elapsed() < Duration::from_secs(5), "{:?}", cut.elapsed());
    assert_eq!(web.open(), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_replaced_is_asked_too() {
    let (runtime, web) = (fake(), Web::default());
    let node = node(&runtime, &web);
    let mut pod = pod(pre_stop(get(8080, |_| {})));
    node.pods.set(vec![pod.clone()]).await.unwrap();
    node.running("p").await;
    let ip = node.status("p").unwrap().pod_ip.clone().unwrap();
    pod.spec.as_mut().unwrap().containers[0].image = Some("fake/app:2".to_owned());
    node.pods.set(vec![pod]).await.unwrap();
    node.until("restarted", |node| node.restarts("p", "app") == Some(1))
        .await;
    assert_eq!(web.urls(), [format!("http://{ip}:8080/hook?full=1")]);
    assert_eq!(node.events.count("FailedPreStopHook"), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_holds_up_neither_the_end_of_its_pod_nor_that_of_the_agent() {
    for deletes in [true, false] {
        let (runtime, web) = (fake(), Web::of([Answer::After(Duration::from_secs(100_000))]));
        let node = node(&runtime, &web);
        node.pods.set(vec![pod(post_start(get(8080, |_| {})))]).await.unwrap();
        node.until("asked", |_| web.open() == 1).await;
        // It may take as long as it likes.
        sleep(Duration::from_secs(300)).await;
        assert_eq!(web.open(), 1);
        let begun = Instant::now();
        if deletes {
            node.pods.set(Vec::new()).await.unwrap();
            node.until("gone", |node| node.named("p").is_none()).await;
            assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
        } else {
            node.stop().await;
            assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());
        }
        assert_eq!(web.open(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_client_a_pod_with_http_hooks_is_refused() {
    let runtime = fake();
    let node = Node::start(&runtime, StateDir::in_memory());
    node.pods.set(vec![pod(post_start(get(8080, |_| {})))]).await.unwrap();
    node.until("refused", |node| node.phase("p").as_deref() == Some("Failed"))
        .await;
    assert_eq!(node.status("p").unwrap().reason.as_deref(), Some("PartMissing"));
    assert_eq!(runtime.count(Op::CreateContainer), 0);
    node.stop().await;
}
