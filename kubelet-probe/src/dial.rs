//! Connections to hosts by name or address.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// How many names are looked up at a time.
const LOOKUPS: usize = 32;

/// Connects, and looks names up for that.
///
/// A lookup blocks a thread for as long as name servers keep it waiting, also after whoever asked has given up. So there are few
/// at a time, and one of each name: else names that nobody answers for would take all threads in the end.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    turns: Arc<Semaphore>,
    /// Those that are being looked up, or waited for.
    names: Arc<Mutex<BTreeMap<String, Weak<Semaphore>>>>,
}

impl Default for Dialer {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(LOOKUPS)),
            names: Arc::default(),
        }
    }
}

impl Dialer {
    /// Connects to the first address of a host that answers.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return TcpStream::connect((address, port)).await;
        }
        let look = move |host: &str| Ok((host, port).to_socket_addrs()?.collect());
        let addresses = self.lookup(host, look).await?;
        TcpStream::connect(addresses.as_slice()).await
    }

    async fn lookup(
        &self,
        host: &str,
        look: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let of_name = self.turn_of(host).acquire_owned().await.map_err(io::Error::other)?;
        let of_all = self.turns.clone().acquire_owned().await.map_err(io::Error::other)?;
        let host = host.to_owned();
        let looked = tokio::task::spawn_blocking(move || {
            // Given back when the lookup ends, whether or not anybody still waits for it.
            let _turns = (of_name, of_all);
            look(&host)
        });
        looked.await.map_err(io::Error::other)?
    }

    fn turn_of(&self, host: &str) -> Arc<Semaphore> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = names.get(host).and_then(Weak::upgrade) {
            return turn;
        }
        names.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Semaphore::new(1));
        names.insert(host.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{Dialer, LOOKUPS};

    #[tokio::test]
    async fn lookups_that_nobody_waits_for_any_more_do_not_pile_up() {
        let dialer = Dialer::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (end, ends) = channel::<()>();
        let ends = Arc::new(std::sync::Mutex::new(ends));
        let hang = || {
            let (begun, ends) = (begun.clone(), ends.clone());
            move |_: &str| {
                begun.fetch_add(1, Ordering::Relaxed);
                // Until the sender goes.
                let _ = ends.lock().unwrap().recv();
                Ok(Vec::new())
            }
        };
        // The same name again and again, each time given up.
        for _ in 0..5 {
            assert!(
                timeout(Duration::from_millis(5), dialer.lookup("slow", hang()))
                    .await
                    .is_err()
            );
        }
        for number in 0..2 * LOOKUPS {
            let name = format!("slow-{number}");
            let given_up = timeout(Duration::from_millis(1), dialer.lookup(&name, hang())).await;
            assert!(given_up.is_err());
        }
        assert!(begun.load(Ordering::Relaxed) <= LOOKUPS);
        drop(end);
        let found = dialer
            .lookup("slow", |_| Ok(vec!["127.0.0.1:1".parse().unwrap()]))
            .await;
        assert_eq!(found.unwrap().len(), 1);
        assert!(dialer.names.lock().unwrap().len() <= 2 * LOOKUPS + 1);
    }

    #[tokio::test]
    async fn a_name_leads_to_its_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["localhost", "127.0.0.1"] {
            Dialer::default().connect(host, port).await.unwrap();
        }
        assert!(Dialer::default().connect("no such host", port).await.is_err());
    }
}
