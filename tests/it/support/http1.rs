//! The little HTTP/1.1 the fault proxy needs: heads, and the end of a chunked body.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use super::fault_proxy::Answer;

/// Reads to the end of a head; none when the peer closed before it began.
pub(super) async fn read_head(from: &mut OwnedReadHalf) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok(Some((bytes, rest)));
        }
        if bytes.len() > 256 << 10 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if from.read_buf(&mut bytes).await? == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
    }
}

pub(super) type Lines = Vec<(String, String)>;

pub(super) fn parse(head: &[u8]) -> io::Result<(Lines, String, String)> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let text = std::str::from_utf8(head).map_err(|_| bad())?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next().ok_or_else(bad)?.split(' ');
    let (method, target) = (first.next().ok_or_else(bad)?.to_owned(), first.next().ok_or_else(bad)?.to_owned());
    let headers = lines
        .take_while(|line| !line.is_empty())
        .map(|line| {
            line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned())).ok_or_else(bad)
        })
        .collect::<io::Result<_>>()?;
    Ok((headers, method, target))
}

/// The server's head, saying that this connection ends with it.
pub(super) fn one_answer(head: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(head);
    let mut out = String::new();
    for line in
        text.split("\r\n").filter(|line| !line.is_empty() && !line.to_ascii_lowercase().starts_with("connection:"))
    {
        out += line;
        out += "\r\n";
    }
    (out + "Connection: close\r\n\r\n").into_bytes()
}

pub(super) fn answer_bytes(answer: &Answer, is_head: bool) -> Vec<u8> {
    let mut head =
        format!("HTTP/1.1 {} Made Up\r\nContent-Length: {}\r\nConnection: close\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let mut bytes = head.into_bytes();
    if !is_head {
        bytes.extend_from_slice(&answer.body);
    }
    bytes
}

/// Finds the end of a chunked body without changing it.
#[derive(Default)]
pub(super) struct Chunks {
    state: State,
    line: Vec<u8>,
}

#[derive(Default)]
enum State {
    #[default]
    Size,
    /// Bytes left, with the line end after them.
    Data(u64),
    Trailer,
    Done,
}

impl Chunks {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// How many of these bytes belong to the body.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            match self.state {
                State::Done => break,
                State::Data(left) => {
                    let step = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - used);
                    used += step;
                    let left = left - step as u64;
                    self.state = if left == 0 { State::Size } else { State::Data(left) };
                }
                State::Size | State::Trailer => {
                    self.line.push(bytes[used]);
                    used += 1;
                    if self.line.ends_with(b"\r\n") {
                        self.end_of_line();
                    }
                }
            }
        }
        used
    }

    fn end_of_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).trim().to_owned();
        self.line.clear();
        self.state = match self.state {
            State::Trailer if line.is_empty() => State::Done,
            State::Trailer => State::Trailer,
            _ => match u64::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16) {
                Ok(0) | Err(_) => State::Trailer,
                Ok(size) => State::Data(size + 2),
            },
        };
    }
}
