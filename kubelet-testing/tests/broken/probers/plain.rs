//! The least that a prober can be, with a fault if so told.

use std::env;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kubelet_core::{
    BoundedRequest, BoxError, GrpcProbe, HttpProbe, ProbeAction, ProbeOutcome, ProbeTarget, Prober, TcpProbe,
    async_trait,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub(super) const TLS_HELLO: [u8; 3] = *b"TLS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    HasNoTimeout,
    EachRedirectHasItsTimeout,
    GrpcHasNoTimeout,
    TimeoutIsUnknown,
    ErrorsAreUnknown,
    ShortBodyIsWhole,
    SilenceIsHealth,
    KeepsWholeBodies,
    KeepsWholeHeads,
    KeepsWholeMessages,
    TellsTooMuch,
    KeepsConnections,
    GoesOnAlone,
    UsesAProxy,
    VerifiesCertificates,
    AsksInClearText,
    Only200IsSuccess,
    AnyAnswerIsSuccess,
    WarnsOfNothing,
    FollowsAnywhere,
    FollowsNothing,
    FollowsNine,
    FollowsEleven,
    OneTooManyIsAnAnswer,
    SendsPathsAsTheyAre,
    HeadersOnlyOnce,
    SaysNotWhoAsks,
    FillsInWhatIsEmpty,
    SendsWordsOfABody,
    TwoHosts,
    TalksOverTcp,
    ResetsConnections,
    AsksAfterTheWholeServer,
    AnyStatusIsServing,
    EndsDoNotCount,
    SendsNonsense,
    AsksBeforeItThinks,
    OneAtATime,
}

/// What all clones share.
#[derive(Debug)]
struct Kept {
    connections: Mutex<Vec<TcpStream>>,
    alone: Mutex<JoinSet<()>>,
    one: Semaphore,
}

#[derive(Clone, Debug)]
pub(super) struct Plain {
    fault: Fault,
    kept: Arc<Kept>,
}

struct Answer {
    status: u16,
    body: Vec<u8>,
    location: Option<String>,
}

#[async_trait]
impl Prober for Plain {
    async fn probe(&self, target: &ProbeTarget) -> ProbeOutcome {
        if !self.has(Fault::GoesOnAlone) {
            return self.run(target).await;
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (prober, target) = (self.clone(), target.clone());
        self.kept.alone.lock().unwrap().spawn(async move {
            let _ = sender.send(prober.run(&target).await);
        });
        receiver.await.unwrap()
    }
}

impl Plain {
    pub(super) fn new(fault: Fault) -> Self {
        let kept = Kept {
            connections: Mutex::default(),
            alone: Mutex::default(),
            one: Semaphore::new(1),
        };
        let kept = Arc::new(kept);
        Self { fault, kept }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    async fn run(&self, target: &ProbeTarget) -> ProbeOutcome {
        let _one = match self.has(Fault::OneAtATime) {
            true => Some(self.kept.one.acquire().await.unwrap()),
            false => None,
        };
        if self.has(Fault::AsksBeforeItThinks)
            && let ProbeAction::HttpGet(HttpProbe { host, port, .. }) = &target.action
        {
            let _ = TcpStream::connect((host.as_str(), *port)).await;
        }
        if let Some(fault) = target.action.fault().filter(|_| !self.has(Fault::SendsNonsense)) {
            return ProbeOutcome::Unknown(fault);
        }
        let is_grpc = matches!(target.action, ProbeAction::Grpc(_));
        let limit = match self.fault {
            Fault::HasNoTimeout | Fault::EachRedirectHasItsTimeout => Duration::from_secs(3600),
            Fault::GrpcHasNoTimeout if is_grpc => Duration::from_secs(3600),
            _ => target.timeout,
        };
        let run = async {
            match &target.action {
                ProbeAction::HttpGet(probe) => self.get(probe, target.timeout).await,
                ProbeAction::TcpSocket(probe) => self.connect(probe).await,
                ProbeAction::Grpc(probe) => self.check(probe).await,
                _ => Ok(ProbeOutcome::Unknown("what is that?".to_owned())),
            }
        };
        match timeout(limit, run).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) if self.has(Fault::ErrorsAreUnknown) => ProbeOutcome::Unknown(error.to_string()),
            Ok(Err(error)) => ProbeOutcome::Failure(error.to_string()),
            Err(late) if self.has(Fault::TimeoutIsUnknown) => ProbeOutcome::Unknown(late.to_string()),
            Err(late) => ProbeOutcome::Failure(late.to_string()),
        }
    }

    async fn connect(&self, probe: &TcpProbe) -> Result<ProbeOutcome, BoxError> {
        let mut stream = TcpStream::connect((probe.host.as_str(), probe.port)).await?;
        if self.has(Fault::TalksOverTcp) {
            stream.write_all(b"hello").await?;
        }
        if self.has(Fault::ResetsConnections) {
            stream.set_zero_linger()?;
        }
        self.keep(stream);
        Ok(ProbeOutcome::success())
    }

    async fn get(&self, probe: &HttpProbe, limit: Duration) -> Result<ProbeOutcome, BoxError> {
        let mut request = probe.request("plain")?;
        let word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        let fine = |(name, value): &(String, String)| word(name) && !value.contains(['\r', '\n']);
        if !request.headers.iter().all(fine) && !self.has(Fault::SendsNonsense) {
            return Ok(ProbeOutcome::Unknown("nonsense".to_owned()));
        }
        self.spoil(probe, &mut request);
        let most = match self.fault {
            Fault::FollowsNothing => 0,
            Fault::FollowsNine => 9,
            Fault::FollowsEleven => 11,
            _ => 10,
        };
        let mut url = request.url.clone();
        let mut followed = 0;
        loop {
            let exchange = self.exchange(&request, &url);
            let answer = match self.fault {
                Fault::EachRedirectHasItsTimeout => timeout(limit, exchange).await??,
                _ => exchange.await?,
            };
            let (scheme, rest) = url.split_once("://").unwrap();
            let (place, path) = rest.split_at(rest.find('/').unwrap());
            let next = answer
                .location
                .as_ref()
                .map(|to| match (to.contains("://"), to.starts_with('/')) {
                    (true, _) => to.clone(),
                    (false, true) => format!("{scheme}://{place}{to}"),
                    (false, false) => format!("{scheme}://{place}{}{to}", &path[..=path.rfind('/').unwrap()]),
                });
            let name = |url: &str| url.split(['/', ':']).nth(3).map(str::to_owned);
            let next = next.filter(|next| self.has(Fault::FollowsAnywhere) || name(next) == name(&url));
            match next {
                None => return Ok(self.outcome(&answer)),
                Some(_) if followed == most && self.has(Fault::OneTooManyIsAnAnswer) => {
                    return Ok(self.outcome(&answer));
                }
                Some(_) if followed == most => return Err("too many redirects".into()),
                Some(next) => url = next,
            }
            followed += 1;
        }
    }

    /// Makes of a request what it should not be.
    fn spoil(&self, probe: &HttpProbe, request: &mut BoundedRequest) {
        let headers = &mut request.headers;
        let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
        match self.fault {
            Fault::SendsPathsAsTheyAre => {
                request.url = format!(
                    "http://{}:{}/{}",
                    probe.host,
                    probe.port,
                    probe.path.trim_start_matches('/')
                );
            }
            Fault::HeadersOnlyOnce => headers.dedup_by_key(|header| header.0.to_ascii_lowercase()),
            Fault::SaysNotWhoAsks => headers.retain(|(name, _)| !is(name, "User-Agent")),
            Fault::FillsInWhatIsEmpty if !headers.iter().any(|(name, _)| is(name, "User-Agent")) => {
                headers.push(("User-Agent".to_owned(), "plain".to_owned()));
            }
            Fault::SendsWordsOfABody => headers.clone_from(&{
                let mut all = headers.clone();
                all.extend(
                    probe
                        .headers
                        .iter()
                        .filter(|(name, _)| is(name, "Content-Length"))
                        .cloned(),
                );
                all
            }),
            Fault::TwoHosts => headers.push(("Host".to_owned(), "127.0.0.1".to_owned())),
            _ => {}
        }
    }

    fn outcome(&self, answer: &Answer) -> ProbeOutcome {
        let warning = match answer.status {
            200 => None,
            201..=299 if !self.has(Fault::Only200IsSuccess) => None,
            300..=399 if self.has(Fault::WarnsOfNothing) => None,
            300..=399 => Some(String::from_utf8_lossy(&answer.body).into_owned()),
            _ if self.has(Fault::AnyAnswerIsSuccess) => None,
            status => return ProbeOutcome::Failure(status.to_string()),
        };
        ProbeOutcome::Success { warning }
    }

    async fn exchange(&self, request: &BoundedRequest, url: &str) -> Result<Answer, BoxError> {
        let (scheme, rest) = url.split_once("://").ok_or("no URL")?;
        let (place, path) = rest.split_at(rest.find('/').ok_or("no path")?);
        let proxy = env::var("http_proxy").ok().filter(|_| self.has(Fault::UsesAProxy));
        let proxy = proxy.as_deref().and_then(|proxy| proxy.strip_prefix("http://"));
        let mut stream = TcpStream::connect(proxy.unwrap_or(place)).await?;
        if scheme == "https" {
            if self.has(Fault::VerifiesCertificates) {
                return Err("who is that?".into());
            }
            if !self.has(Fault::AsksInClearText) {
                stream.write_all(&TLS_HELLO).await?;
            }
        }
        let mut lines = format!("GET {path} HTTP/1.1\r\n");
        let has_host = request
            .headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"));
        if !has_host || self.has(Fault::TwoHosts) {
            lines.push_str(&format!("Host: {place}\r\n"));
        }
        for (name, value) in &request.headers {
            lines.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{lines}\r\n").as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) if head.is_empty() && self.has(Fault::SilenceIsHealth) => {
                    return Ok(Answer {
                        status: 200,
                        body: Vec::new(),
                        location: None,
                    });
                }
                Err(error) => return Err(error.into()),
            }
            if head.len() > (64 << 10) && !self.has(Fault::KeepsWholeHeads) {
                return Err("the head is too long".into());
            }
        }
        let head = String::from_utf8(head)?;
        let first = head.strip_prefix("HTTP/1.").ok_or("no HTTP")?;
        let status = first.split([' ', '\r']).nth(1).ok_or("no status")?.parse()?;
        let header = |wanted: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            let found = lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.to_owned())
        };
        let mut length = header("content-length").map(|length| length.parse()).transpose()?;
        if matches!(status, 204 | 304) {
            length = Some(0_usize);
        }
        let limit = match self.fault {
            Fault::KeepsWholeBodies => usize::MAX,
            Fault::TellsTooMuch => 100 << 10,
            _ => request.body_limit_bytes,
        };
        let mut body = Vec::new();
        // Byte by byte: none of this has to be fast.
        while body.len() < length.unwrap_or(usize::MAX).min(limit) {
            match stream.read_u8().await {
                Ok(byte) => body.push(byte),
                Err(_) if length.is_none() || self.has(Fault::ShortBodyIsWhole) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.keep(stream);
        let location = header("location").filter(|_| matches!(status, 301..=303 | 307 | 308));
        Ok(Answer { status, body, location })
    }

    /// As much of HTTP/2 as one call takes; headers are literals, and of an answer only their last bytes are looked at.
    async fn check(&self, probe: &GrpcProbe) -> Result<ProbeOutcome, BoxError> {
        let mut stream = TcpStream::connect((probe.host.as_str(), probe.port)).await?;
        let mut ask = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        ask.extend(frame(4, 0, 0, &[]));
        let mut block = vec![0x83, 0x86];
        for (name, value) in [
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", "plain"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ] {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len())?);
                block.extend(text.as_bytes());
            }
        }
        ask.extend(frame(1, 4, 1, &block));
        let service = match self.fault {
            Fault::AsksAfterTheWholeServer => "",
            _ => probe.service.as_str(),
        };
        let mut message = Vec::new();
        if !service.is_empty() {
            message.extend([0x0a, u8::try_from(service.len())?]);
            message.extend(service.as_bytes());
        }
        let mut data = vec![0, 0, 0, 0, u8::try_from(message.len())?];
        data.extend(message);
        ask.extend(frame(0, 1, 1, &data));
        stream.write_all(&ask).await?;
        let mut data: Vec<u8> = Vec::new();
        let end = loop {
            let mut head = [0; 9];
            match stream.read_exact(&mut head).await {
                Ok(_) => {}
                Err(_) if self.has(Fault::SilenceIsHealth) => return Ok(ProbeOutcome::success()),
                Err(error) => return Err(error.into()),
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            if length > (16 << 10) {
                return Err("the frame is too long".into());
            }
            let mut payload = vec![0; usize::try_from(length)?];
            stream.read_exact(&mut payload).await?;
            if head[3] == 0 {
                data.extend(&payload);
            }
            if data.len() > (10 << 10) && !self.has(Fault::KeepsWholeMessages) {
                return Err("the message is too long".into());
            }
            if head[4] & 1 != 0 && matches!(head[3], 0 | 1) {
                break (head[3] == 1).then_some(payload);
            }
        };
        self.keep(stream);
        // A code of one digit, after its length.
        let is_ok = end.is_some_and(|end| end.ends_with(b"grpc-status\x010"));
        let is_serving = data == [0, 0, 0, 0, 2, 8, 1] || (data.len() == 7 && self.has(Fault::AnyStatusIsServing));
        if is_serving && (is_ok || self.has(Fault::EndsDoNotCount)) {
            return Ok(ProbeOutcome::success());
        }
        Err("it does not serve".into())
    }

    fn keep(&self, stream: TcpStream) {
        if self.has(Fault::KeepsConnections) {
            self.kept.connections.lock().unwrap().push(stream);
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}
