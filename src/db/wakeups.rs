//! Wake-ups: who waits for a change is told when it has been committed, here or in another replica.
//!
//! A wake-up is a hint, never a fact: the waiter looks at the database again. Topics share a fixed number of slots, so a
//! waiter may be woken for another topic's sake; memory does not grow with topics. Postgres carries topics between replicas
//! by LISTEN/NOTIFY, with a poll behind it for the notification that a broken connection lost.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A waiter woken for nothing costs one query; with a few thousand waiters that is rare enough.
const SLOTS: usize = 256;

/// The exchange of one process.
#[derive(Debug, Clone)]
pub struct Wakeups {
    slots: Arc<[watch::Sender<u64>]>,
    /// How long a waiter trusts silence.
    poll: Duration,
    closing: CancellationToken,
}

impl Wakeups {
    /// `poll` bounds how long a lost notification can go unnoticed.
    pub fn new(poll: Duration) -> Self {
        Self { slots: (0..SLOTS).map(|_| watch::channel(0).0).collect(), poll, closing: CancellationToken::new() }
    }

    /// Wakes every waiter of `topic` in this process. Transactions use [`super::Tx::notify`] instead.
    pub fn wake(&self, topic: &str) {
        self.slot(topic).send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes everybody: after a lost connection nobody knows what was missed.
    pub fn wake_all(&self) {
        for slot in self.slots.iter() {
            slot.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Ends every wait, now and later, as if its deadline were over: the service is about to stop.
    /// Long polls answer then with what they have.
    pub fn close(&self) {
        self.closing.cancel();
    }

    pub fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Begins to listen. Do this *before* looking at the database: what is committed after it wakes the listener; what was
    /// committed before is seen by the look. The other way round a change in between would go unnoticed until the poll.
    pub fn listen(&self, topic: &str) -> Listener {
        Listener { slot: self.slot(topic).subscribe(), poll: self.poll, closing: self.closing.clone() }
    }

    fn slot(&self, topic: &str) -> &watch::Sender<u64> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(topic);
        &self.slots[usize::try_from(hash % SLOTS as u64).expect("less than SLOTS")]
    }
}

/// One waiter's ear. Several wake-ups between two waits count as one.
#[derive(Debug)]
pub struct Listener {
    slot: watch::Receiver<u64>,
    poll: Duration,
    closing: CancellationToken,
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Look again: something may have changed.
    LookAgain,
    /// The deadline is over: look a last time if you like, then answer.
    TimeIsUp,
}

impl Listener {
    /// Waits for a wake-up, the poll, or the deadline, whichever comes first. May be dropped and called again without losing
    /// one. `LookAgain` may come for nothing: look, and wait again.
    pub async fn wait(&mut self, deadline: Instant) -> Woken {
        let until = deadline.min(Instant::now() + self.poll);
        tokio::select! {
            () = self.closing.cancelled() => Woken::TimeIsUp,
            woken = tokio::time::timeout_at(until, self.slot.changed()) => match woken {
                Ok(_) => Woken::LookAgain,
                Err(_) if until < deadline => Woken::LookAgain,
                Err(_) => Woken::TimeIsUp,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_happens_after_listen_is_not_missed() {
        let wakeups = Wakeups::new(Duration::from_secs(3_600));
        let mut ear = wakeups.listen("job/1");
        wakeups.wake("job/1"); // before wait: still heard
        assert_eq!(ear.wait(Instant::now() + Duration::from_secs(3_600)).await, Woken::LookAgain);
    }

    #[tokio::test]
    async fn silence_ends_at_the_deadline_and_is_interrupted_by_the_poll() {
        let polled = Wakeups::new(Duration::from_millis(1));
        let mut ear = polled.listen("job/1");
        assert_eq!(ear.wait(Instant::now() + Duration::from_secs(3_600)).await, Woken::LookAgain);
        let silent = Wakeups::new(Duration::from_secs(3_600));
        let mut ear = silent.listen("job/1");
        let deadline = Instant::now() + Duration::from_millis(1);
        assert_eq!(ear.wait(deadline).await, Woken::TimeIsUp);
        assert!(Instant::now() >= deadline);
    }

    #[tokio::test]
    async fn closing_ends_waits_begun_before_and_after() {
        let wakeups = Wakeups::new(Duration::from_secs(3_600));
        let far = Instant::now() + Duration::from_secs(3_600);
        let mut before = wakeups.listen("job/1");
        let (woken, ()) = tokio::join!(before.wait(far), async { wakeups.close() });
        assert_eq!(woken, Woken::TimeIsUp);
        assert_eq!(wakeups.listen("job/1").wait(far).await, Woken::TimeIsUp);
    }
}
