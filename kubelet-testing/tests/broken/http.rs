//! HTTP clients that break a promise.

use std::env;
use std::sync::Mutex;
use std::time::Duration;

use kubelet_core::{BoundedRequest, BoundedResponse, BoxError, HttpClient, HttpError, async_trait};
use kubelet_testing::contract::HttpFixture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};

use crate::faults;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    BodyHasNoTimeout,
    EachRedirectHasItsTimeout,
    KeepsWholeBodies,
    CutsSilently,
    KeepsWholeHeads,
    KeepsConnections,
    GoesOnAlone,
    UsesAProxy,
    BadStatusIsAnError,
    PlainHttpIsAnError,
    ShortBodyIsWhole,
    NoAnswerIsEmpty,
    HeadersOnlyOnce,
    SendsNonsense,
    FollowsAnywhere,
    OneAtATime,
}

/// The least that a client can be.
#[derive(Debug)]
struct Plain {
    fault: Fault,
    kept: Mutex<Vec<TcpStream>>,
    alone: Mutex<JoinSet<()>>,
    busy: Mutex<bool>,
}

struct Answer {
    response: BoundedResponse,
    location: Option<String>,
}

#[async_trait]
impl HttpClient for Plain {
    async fn send(&self, req: BoundedRequest) -> Result<BoundedResponse, HttpError> {
        if self.fault == Fault::OneAtATime && std::mem::replace(&mut *self.busy.lock().unwrap(), true) {
            return Err(failed(&req, "another request goes on"));
        }
        if self.fault == Fault::GoesOnAlone {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let (client, url) = (Self::new(Fault::None), req.url.clone());
            self.alone.lock().unwrap().spawn(async move {
                let _ = sender.send(client.send(req).await);
            });
            let gone = |_| HttpError::Failed {
                url,
                source: "gone".into(),
            };
            return receiver.await.map_err(gone)?;
        }
        let whole = match self.fault {
            Fault::EachRedirectHasItsTimeout | Fault::BodyHasNoTimeout => Duration::from_secs(3600),
            _ => req.timeout,
        };
        let answer = match timeout(whole, self.follow(&req)).await {
            Ok(answer) => answer,
            Err(_) => Err(late(&req)),
        };
        *self.busy.lock().unwrap() = false;
        answer
    }
}

fn failed(req: &BoundedRequest, why: impl Into<BoxError>) -> HttpError {
    HttpError::Failed {
        url: req.url.clone(),
        source: why.into(),
    }
}

fn late(req: &BoundedRequest) -> HttpError {
    HttpError::TimedOut {
        url: req.url.clone(),
        after: req.timeout,
    }
}

/// Host with port, and path.
fn parts(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    (!host.is_empty()).then_some((host, if path.is_empty() { "/" } else { path }))
}

impl Plain {
    fn new(fault: Fault) -> Self {
        Self {
            fault,
            kept: Mutex::default(),
            alone: Mutex::default(),
            busy: Mutex::default(),
        }
    }

    /// Asks for TLS, of which it knows how it begins.
    async fn hello(&self, req: &BoundedRequest, host: &str) -> HttpError {
        let first = async {
            let mut stream = TcpStream::connect(host).await?;
            stream.write_all(&[0x16, 3, 1]).await?;
            let mut first = [0; 5];
            stream.read_exact(&mut first).await?;
            Ok::<_, std::io::Error>(first)
        };
        match first.await {
            Ok(first) if &first == b"HTTP/" && self.fault != Fault::PlainHttpIsAnError => {
                HttpError::PlainHttp { url: req.url.clone() }
            }
            Ok(_) => failed(req, "no TLS"),
            Err(error) => failed(req, error),
        }
    }

    fn check(&self, req: &BoundedRequest) -> Result<(), HttpError> {
        let word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        let fine = |(name, value): &(String, String)| word(name) && !value.contains(['\r', '\n']);
        let sensible = parts(&req.url).is_some() && word(&req.method) && req.headers.iter().all(fine);
        if sensible || (self.fault == Fault::SendsNonsense && parts(&req.url).is_some()) {
            return Ok(());
        }
        Err(HttpError::BadRequest {
            url: req.url.clone(),
            message: "nonsense".to_owned(),
        })
    }

    async fn follow(&self, req: &BoundedRequest) -> Result<BoundedResponse, HttpError> {
        if let Some(rest) = req.url.strip_prefix("https://") {
            return Err(self.hello(req, rest.trim_end_matches('/')).await);
        }
        self.check(req)?;
        let mut url = req.url.clone();
        for redirects in 0.. {
            let exchange = self.exchange(req, &url);
            let answer = match self.fault {
                Fault::EachRedirectHasItsTimeout => timeout(req.timeout, exchange).await.map_err(|_| late(req))?,
                _ => exchange.await,
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(_) if self.fault == Fault::NoAnswerIsEmpty => return Ok(BoundedResponse::new(200, "")),
                Err(error) if error.is::<tokio::time::error::Elapsed>() => return Err(late(req)),
                Err(error) => return Err(failed(req, error)),
            };
            let (host, path) = parts(&url).unwrap();
            let next = answer.location.map(|to| match (to.starts_with('/'), parts(&to)) {
                (true, _) => format!("http://{host}{to}"),
                (false, Some(_)) => to,
                (false, None) => format!("http://{host}{}{to}", &path[..=path.rfind('/').unwrap()]),
            });
            let name = |url: &str| parts(url).map(|(host, _)| host.split(':').next().unwrap().to_owned());
            let anywhere = self.fault == Fault::FollowsAnywhere;
            match next.filter(|next| anywhere || (redirects < req.max_redirects && name(next) == name(&url))) {
                Some(next) if redirects < 100 || !anywhere => url = next,
                _ if self.fault == Fault::BadStatusIsAnError && answer.response.status >= 400 => {
                    return Err(failed(req, "a bad status"));
                }
                _ => return Ok(answer.response),
            }
        }
        Err(late(req))
    }

    async fn exchange(&self, req: &BoundedRequest, url: &str) -> Result<Answer, BoxError> {
        let (host, path) = parts(url).ok_or("no URL")?;
        let proxy = env::var("http_proxy").ok().filter(|_| self.fault == Fault::UsesAProxy);
        let place = proxy.as_deref().and_then(parts).map_or(host, |(proxy, _)| proxy);
        let head_until = tokio::time::Instant::now() + req.timeout;
        let mut stream = TcpStream::connect(place).await?;
        stream.write_all(self.head(req, host, path).as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            // Between them interim answers are thrown away.
            if head.ends_with(b"100 Continue\r\n") {
                head.clear();
                timeout_at(head_until, stream.read_u16()).await??;
                continue;
            }
            head.push(timeout_at(head_until, stream.read_u8()).await??);
            if head.len() > (64 << 10) && self.fault != Fault::KeepsWholeHeads {
                return Err("the head is too long".into());
            }
        }
        let head = String::from_utf8(head)?;
        let mut lines = head.lines();
        let first = lines
            .next()
            .and_then(|line| line.strip_prefix("HTTP/1."))
            .ok_or("no HTTP")?;
        let status = first.split(' ').nth(1).ok_or("no status")?.parse()?;
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let header = |name: &str| {
            headers
                .iter()
                .find(|header| header.0 == name)
                .map(|header| header.1.clone())
        };
        let mut length = header("content-length").map(|length| length.parse()).transpose()?;
        if matches!(status, 204 | 304) {
            length = Some(0_usize);
        }
        let limit = match self.fault {
            Fault::KeepsWholeBodies => usize::MAX >> 1,
            _ => req.body_limit_bytes,
        };
        let wanted = length.unwrap_or(usize::MAX).min(limit.saturating_add(1));
        let mut body = Vec::new();
        // Byte by byte: none of this has to be fast.
        while body.len() < wanted {
            match stream.read_u8().await {
                Ok(byte) => body.push(byte),
                Err(_) if self.fault == Fault::ShortBodyIsWhole => break,
                Err(error) if length.is_some() || error.kind() != std::io::ErrorKind::UnexpectedEof => {
                    return Err(error.into());
                }
                Err(_) => break,
            }
        }
        let truncated = body.len() > limit;
        body.truncate(limit);
        let mut response = BoundedResponse::new(status, body);
        response.truncated = truncated && self.fault != Fault::CutsSilently;
        let location = header("location").filter(|_| (300..400).contains(&status));
        response.headers = headers;
        if self.fault == Fault::KeepsConnections {
            self.kept.lock().unwrap().push(stream);
        }
        Ok(Answer { response, location })
    }

    fn head(&self, req: &BoundedRequest, host: &str, path: &str) -> String {
        let mut headers = req.headers.clone();
        if self.fault == Fault::HeadersOnlyOnce {
            headers.dedup_by_key(|header| header.0.to_ascii_lowercase());
        }
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            headers.push(("Host".to_owned(), host.to_owned()));
        }
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        format!("{} {path} HTTP/1.1\r\n{lines}\r\n", req.method)
    }
}

async fn sound() -> Option<(Plain, HttpFixture)> {
    Some((Plain::new(Fault::None), HttpFixture::new()))
}

kubelet_testing::http_contract!(sound);

/// With little patience, since what is broken is often waited for in vain.
fn with(fault: Fault) -> impl AsyncFnOnce() -> Option<(Plain, HttpFixture)> {
    async move || Some((Plain::new(fault), HttpFixture::new().patience(Duration::from_secs(3))))
}

faults! { http:
    a_body_has_no_timeout: with(Fault::BodyHasNoTimeout), the_whole_exchange_ends_within_the_timeout, "not within";
    each_redirect_has_its_timeout: with(Fault::EachRedirectHasItsTimeout), the_whole_exchange_ends_within_the_timeout, "not within";
    keeps_whole_bodies: with(Fault::KeepsWholeBodies), no_more_than_the_body_limit_is_kept, "";
    cuts_silently: with(Fault::CutsSilently), no_more_than_the_body_limit_is_kept, "is not said to be";
    keeps_whole_heads: with(Fault::KeepsWholeHeads), the_head_is_bounded_too, "";
    keeps_connections: with(Fault::KeepsConnections), connections_are_not_kept, "closes its connection";
    goes_on_alone: with(Fault::GoesOnAlone), dropping_the_future_ends_the_exchange, "closes its connection";
    a_bad_status_is_an_error: with(Fault::BadStatusIsAnError), any_status_code_is_an_answer, "status 400 gives";
    plain_http_is_an_error: with(Fault::PlainHttpIsAnError), plain_http_is_told_apart, "is asked for TLS and says";
    a_short_body_is_whole: with(Fault::ShortBodyIsWhole), what_is_cut_off_is_an_error, "closes in its body";
    no_answer_is_empty: with(Fault::NoAnswerIsEmpty), what_is_cut_off_is_an_error, "closes at once";
    headers_only_once: with(Fault::HeadersOnlyOnce), a_request_is_sent_as_it_is_asked_for, "a header that repeats";
    sends_nonsense: with(Fault::SendsNonsense), nonsense_is_a_bad_request, "gives";
    follows_anywhere: with(Fault::FollowsAnywhere), redirects_are_followed_as_far_as_allowed, "redirects";
    one_at_a_time: with(Fault::OneAtATime), requests_may_overlap_each_other, "one of many requests";
}

#[test]
fn uses_a_proxy() {
    use kubelet_testing::contract::check_without_proxy;
    use kubelet_testing::contract::http::no_proxy_is_used;

    let test = concat!(module_path!(), "::uses_a_proxy");
    let check = || {
        check_without_proxy(test, with(Fault::UsesAProxy), async |client, fixture| {
            no_proxy_is_used(client, fixture).await;
        });
    };
    // In the process that is started with a proxy the check is all there is to do.
    if env::var_os("KUBELET_TESTING_BEHIND_PROXY").is_some() {
        return check();
    }
    let said = crate::caught(check);
    assert!(said.contains("a proxy that the environment names was asked"), "{said}");
}
