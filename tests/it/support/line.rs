//! A TCP line that can be cut and mended: everything passes, until nothing does.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// In front of one server. While it is cut, open connections are closed and new ones at once.
#[derive(Debug)]
pub struct Line {
    pub address: SocketAddr,
    is_up: Arc<watch::Sender<bool>>,
    _passing: JoinSet<()>,
}

impl Line {
    /// Listens on a free loopback port, in front of `upstream` (`host:port`).
    pub async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_up = Arc::new(watch::Sender::new(true));
        let mut passing = JoinSet::new();
        let state = Arc::clone(&is_up);
        passing.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (mut state, upstream) = (state.subscribe(), upstream.clone());
                open.spawn(async move {
                    tokio::select! {
                        _ = state.wait_for(|is_up| !is_up) => {}
                        () = pass(client, &upstream) => {}
                    }
                });
                while open.try_join_next().is_some() {}
            }
        });
        Self { address, is_up, _passing: passing }
    }

    pub fn cut(&self) {
        self.is_up.send_replace(false);
    }

    pub fn mend(&self) {
        self.is_up.send_replace(true);
    }
}

async fn pass(mut client: TcpStream, upstream: &str) {
    if let Ok(mut server) = TcpStream::connect(upstream).await {
        // a connection that broke is what this is for
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
