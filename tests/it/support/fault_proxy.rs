//! An HTTP/1.1 proxy on loopback that does one broken thing to order, and logs every request.
//!
//! ```ignore
//! let proxy = FaultProxy::start("http://127.0.0.1:8333").await;
//! proxy.on(Rule::new("PUT", "/packs/").times(1).does(Fault::DropReply));
//! // ... talk to proxy.url() ...
//! proxy.wait(|seen| seen.method == "PUT", 2).await;    // no sleeps: returns once two PUTs were seen
//! assert!(proxy.log().iter().all(|seen| !seen.headers.contains_key("x-amz-trailer")));
//! ```
//!
//! The first rule that matches a request and has uses left decides; without one the request passes. The `Host` header is passed
//! on untouched, so signatures stay valid for the proxy's address. One connection carries one request, in both directions.
//! Bodies are streamed, never held. Dropping the proxy ends it and cuts what is open.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::http1::{Chunks, answer_bytes, one_answer, parse, read_head};

/// What happens to a request. "After the effect" means that the server did what was asked.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answers this at once; the server sees nothing.
    Answer(Answer),
    /// The server does what was asked, and its answer is replaced by this one.
    AnswerAfter(Answer),
    /// Reads the request and closes the connection; the server sees nothing.
    Drop,
    /// The server does what was asked; its answer is swallowed and the connection closed.
    DropReply,
    /// Passes so many bytes of the request's body on, then closes both connections.
    CutRequest(u64),
    /// Passes so many bytes of the answer's body on, then closes both connections.
    CutReply(u64),
    /// Waits, then passes the request on.
    Delay(Duration),
    /// Reads the request and says nothing until the caller or the test gives up.
    Hang,
    /// Passes so many bytes of the answer's body on, then says nothing more.
    HangReply(u64),
}

/// A made-up answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// When which fault happens.
#[derive(Debug, Clone)]
pub struct Rule {
    method: String,
    target: String,
    skip: u64,
    times: u64,
    fault: Fault,
}

impl Rule {
    /// For requests of `method` (`*`: any) whose path and query contain `target` (empty: any). For ever, until [`Self::times`].
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), skip: 0, times: u64::MAX, fault: Fault::Drop }
    }

    /// Lets so many matching requests pass first.
    pub fn skip(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    /// Strikes so many times at most.
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    pub fn does(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }
}

/// One request, as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// By lower-case name.
    pub headers: BTreeMap<String, String>,
    /// Body bytes that came, as far as they were read.
    pub body_bytes: u64,
    /// What was done to it; none when it passed.
    pub fault: Option<Fault>,
    /// The server's own status, when it answered.
    pub status: Option<u16>,
    /// Whether nothing more will be noted here.
    pub done: bool,
}

#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    rules: Mutex<Vec<Rule>>,
    log: Mutex<Log>,
    changed: Notify,
}

/// What was seen since it was last forgotten. Requests count from 0 on and keep their numbers when the log is forgotten, so that
/// one that began before is not taken for another.
#[derive(Debug, Default)]
struct Log {
    forgotten: usize,
    seen: Vec<Seen>,
}

impl FaultProxy {
    /// Listens on a free loopback port, in front of `upstream` (`http://host:port` or `host:port`).
    pub async fn start(upstream: &str) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared =
            Arc::new(Shared { upstream, rules: Mutex::default(), log: Mutex::default(), changed: Notify::new() });
        let mut accepting = JoinSet::new();
        let connection = Arc::clone(&shared);
        accepting.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&connection);
                open.spawn(async move {
                    // a connection that broke is this proxy's daily business
                    let _ = Exchange::run(&shared, client).await;
                });
                while open.try_join_next().is_some() {}
            }
        });
        Self { address, shared, _accepting: accepting }
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn on(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Forgets all rules: everything passes.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
    }

    /// Every request so far, in the order they began.
    pub fn log(&self) -> Vec<Seen> {
        lock(&self.shared.log).seen.clone()
    }

    pub fn forget(&self) {
        let mut log = lock(&self.shared.log);
        log.forgotten += log.seen.len();
        log.seen.clear();
    }

    pub fn count(&self, wanted: impl Fn(&Seen) -> bool) -> usize {
        lock(&self.shared.log).seen.iter().filter(|seen| wanted(seen)).count()
    }

    /// Waits until `count` requests like the wanted ones were seen (their heads; not their ends).
    pub async fn wait(&self, wanted: impl Fn(&Seen) -> bool, count: usize) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.count(&wanted) >= count {
                return;
            }
            changed.await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Shared {
    fn choose(&self, method: &str, target: &str) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        for rule in rules.iter_mut() {
            if rule.times == 0 || (rule.method != "*" && rule.method != method) || !target.contains(&rule.target) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.times -= 1;
            return Some(rule.fault.clone());
        }
        None
    }

    fn note(&self, entry: usize, change: impl FnOnce(&mut Seen)) {
        let mut log = lock(&self.log);
        let at = entry.checked_sub(log.forgotten);
        if let Some(seen) = at.and_then(|at| log.seen.get_mut(at)) {
            change(seen);
        }
        drop(log);
        self.changed.notify_waiters();
    }
}

/// How a request's body ends.
enum Framing {
    Length(u64),
    Chunked(Chunks),
}

/// One request on its way.
struct Exchange<'a> {
    shared: &'a Shared,
    entry: usize,
    framing: Framing,
    /// The request's head for the server, then body bytes that came along with it.
    head: Vec<u8>,
    early: Vec<u8>,
    is_head: bool,
}

impl<'a> Exchange<'a> {
    async fn run(shared: &'a Shared, client: TcpStream) -> io::Result<()> {
        let (mut from_client, mut to_client) = client.into_split();
        let Some((head, early)) = read_head(&mut from_client).await? else { return Ok(()) };
        let (lines, method, target) = parse(&head)?;
        let fault = shared.choose(&method, &target);
        let headers: BTreeMap<String, String> =
            lines.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
        let framing = match headers.get("transfer-encoding") {
            Some(coding) if coding.to_ascii_lowercase().contains("chunked") => Framing::Chunked(Chunks::default()),
            _ => Framing::Length(headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)),
        };
        if headers.get("expect").is_some_and(|expect| expect.eq_ignore_ascii_case("100-continue")) {
            to_client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let entry = {
            let mut log = lock(&shared.log);
            log.seen.push(Seen {
                method: method.clone(),
                target: target.clone(),
                headers,
                body_bytes: 0,
                fault: fault.clone(),
                status: None,
                done: false,
            });
            log.forgotten + log.seen.len() - 1
        };
        shared.changed.notify_waiters();
        let mut to_server = format!("{method} {target} HTTP/1.1\r\n");
        for (name, value) in lines {
            if !["connection", "expect"].contains(&name.to_ascii_lowercase().as_str()) {
                to_server += &format!("{name}: {value}\r\n");
            }
        }
        to_server += "Connection: close\r\n\r\n";
        let exchange = Self { shared, entry, framing, head: to_server.into_bytes(), early, is_head: method == "HEAD" };
        let done = exchange.act(fault, from_client, to_client).await;
        shared.note(entry, |seen| seen.done = true);
        done
    }

    async fn act(mut self, fault: Option<Fault>, mut client: OwnedReadHalf, mut out: OwnedWriteHalf) -> io::Result<()> {
        match fault {
            Some(Fault::Answer(answer)) => {
                // answered at once, like a server that refuses by the head alone; the body is read so that the answer is too
                out.write_all(&answer_bytes(&answer, self.is_head)).await?;
                out.shutdown().await?;
                self.body(&mut client, None, u64::MAX).await.map(drop)
            }
            Some(Fault::Drop) => self.body(&mut client, None, u64::MAX).await.map(drop),
            Some(Fault::Hang) => {
                self.body(&mut client, None, u64::MAX).await?;
                wait_for_close(client).await
            }
            Some(Fault::CutRequest(limit)) => {
                let (_server, mut to_server) = self.connect().await?;
                self.body(&mut client, Some(&mut to_server), limit).await?;
                to_server.shutdown().await
            }
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                self.forward(client, out, Reply::Pass { limit: u64::MAX, then_hang: false }).await
            }
            Some(Fault::DropReply) => self.forward(client, out, Reply::Swallow).await,
            Some(Fault::AnswerAfter(answer)) => {
                let bytes = answer_bytes(&answer, self.is_head);
                self.forward(client, out, Reply::Replace(bytes)).await
            }
            Some(Fault::CutReply(limit)) => self.forward(client, out, Reply::Pass { limit, then_hang: false }).await,
            Some(Fault::HangReply(limit)) => self.forward(client, out, Reply::Pass { limit, then_hang: true }).await,
            None => self.forward(client, out, Reply::Pass { limit: u64::MAX, then_hang: false }).await,
        }
    }

    async fn connect(&self) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
        let server = TcpStream::connect(&self.shared.upstream).await?;
        server.set_nodelay(true)?;
        let (from_server, mut to_server) = server.into_split();
        to_server.write_all(&self.head).await?;
        Ok((from_server, to_server))
    }

    async fn forward(mut self, mut client: OwnedReadHalf, mut out: OwnedWriteHalf, reply: Reply) -> io::Result<()> {
        let (mut from_server, mut to_server) = self.connect().await?;
        let (shared, entry) = (self.shared, self.entry);
        let up = async {
            let whole = self.body(&mut client, Some(&mut to_server), u64::MAX).await;
            if !matches!(whole, Ok(true)) {
                // the caller broke off: the server shall see that too
                let _ = to_server.shutdown().await;
            }
        };
        let down = async {
            let Some((head, early)) = read_head(&mut from_server).await? else { return Ok(()) };
            let status = std::str::from_utf8(&head).ok().and_then(|head| head.split(' ').nth(1)?.parse().ok());
            shared.note(entry, |seen| seen.status = status);
            reply.pass(&head, &early, &mut from_server, &mut out).await
        };
        tokio::pin!(up, down);
        // an answer may come before the body was all sent; and when the caller breaks off, the server's end is waited for
        tokio::select! {
            done = &mut down => done,
            _ = &mut up => down.await,
        }
    }

    /// Reads the request's body and passes it on, `limit` bytes of it at most. Tells whether all of it came.
    async fn body(
        &mut self,
        client: &mut OwnedReadHalf,
        mut to: Option<&mut OwnedWriteHalf>,
        limit: u64,
    ) -> io::Result<bool> {
        let mut passed = 0;
        let mut buffer = std::mem::take(&mut self.early);
        loop {
            let used = match &mut self.framing {
                Framing::Length(left) => {
                    let used = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                    *left -= used as u64;
                    used
                }
                Framing::Chunked(chunks) => chunks.take(&buffer),
            };
            let keep = used.min(usize::try_from(limit - passed).unwrap_or(usize::MAX));
            passed += keep as u64;
            self.shared.note(self.entry, |seen| seen.body_bytes += used as u64);
            if let Some(to) = &mut to {
                to.write_all(&buffer[..keep]).await?;
            }
            if passed == limit && limit != u64::MAX {
                return Ok(false);
            }
            let done = match &self.framing {
                Framing::Length(left) => *left == 0,
                Framing::Chunked(chunks) => chunks.is_done(),
            };
            if done {
                return Ok(true);
            }
            buffer.resize(64 << 10, 0);
            let read = client.read(&mut buffer).await?;
            buffer.truncate(read);
            if read == 0 {
                return Ok(false);
            }
        }
    }
}

/// What becomes of the server's answer.
enum Reply {
    Pass { limit: u64, then_hang: bool },
    Swallow,
    Replace(Vec<u8>),
}

impl Reply {
    async fn pass(
        self,
        head: &[u8],
        early: &[u8],
        server: &mut OwnedReadHalf,
        out: &mut OwnedWriteHalf,
    ) -> io::Result<()> {
        let (mut limit, then_hang) = match self {
            Self::Pass { limit, then_hang } => (limit, then_hang),
            Self::Swallow => return drain(server).await,
            Self::Replace(bytes) => {
                drain(server).await?;
                out.write_all(&bytes).await?;
                return out.shutdown().await;
            }
        };
        out.write_all(&one_answer(head)).await?;
        let mut buffer = early.to_vec();
        loop {
            let keep = buffer.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
            limit -= keep as u64;
            out.write_all(&buffer[..keep]).await?;
            if limit == 0 {
                break;
            }
            buffer.resize(64 << 10, 0);
            let read = server.read(&mut buffer).await?;
            if read == 0 {
                break;
            }
            buffer.truncate(read);
        }
        if then_hang && limit == 0 {
            std::future::pending::<()>().await;
        }
        out.shutdown().await
    }
}

async fn drain(server: &mut OwnedReadHalf) -> io::Result<()> {
    tokio::io::copy(server, &mut tokio::io::sink()).await.map(drop)
}

async fn wait_for_close(mut client: OwnedReadHalf) -> io::Result<()> {
    tokio::io::copy(&mut client, &mut tokio::io::sink()).await.map(drop)
}
