//! Model test of the ring protocol: shuttle runs its threads in many orders.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub, dead_code, reason = "the whole of `ring` is compiled here, on other channels")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::thread;

/// The library's own file, on the channels below.
#[path = "../src/ring.rs"]
mod ring;

/// Shuttle's channels under the names of crossbeam's.
mod channel {
    use std::time::Duration;

    use shuttle::sync::mpsc;

    pub(crate) use mpsc::{RecvTimeoutError, TryRecvError};

    #[derive(Debug)]
    pub(crate) struct Sender<T>(mpsc::SyncSender<T>);

    #[derive(Debug)]
    pub(crate) struct Receiver<T>(mpsc::Receiver<T>);

    pub(crate) fn bounded<T>(len: usize) -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = mpsc::sync_channel(len);
        (Sender(sender), Receiver(receiver))
    }

    impl<T> Sender<T> {
        pub(crate) fn send(&self, value: T) -> Result<(), mpsc::SendError<T>> {
            self.0.send(value)
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Result<T, mpsc::RecvError> {
            self.0.recv()
        }

        pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
            self.0.try_recv()
        }

        pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
            self.0.recv_timeout(timeout)
        }

        pub(crate) fn len(&self) -> usize {
            0
        }
    }
}

/// Runs the pipeline's two rings with lag k.
///
/// The producer dies after `dies.0` rollouts, the learner after `dies.1`.
fn pipeline(k: u64, n: u64, dies: (u64, u64)) {
    let [free, rollouts] = ring::ring((0..=k).map(|_| (0, 0)));
    let [orders, to_act] = ring::ring(0..=k);
    let waiting: Vec<u64> = (0..=k).map(|_| orders.recv().unwrap()).collect();
    assert_eq!(waiting.len(), k as usize + 1);
    (0..=k).for_each(|_| orders.send(0).unwrap());
    let made = Arc::new(AtomicUsize::new(0));
    let producer = {
        let made = made.clone();
        thread::spawn(move || {
            for i in 0..n.min(dies.0) {
                let Ok(learnt) = to_act.recv() else { return };
                let Ok(_) = free.recv() else { return };
                assert_eq!(learnt, i.saturating_sub(k), "the policy of k updates before, whatever the timing");
                made.fetch_add(1, Ordering::SeqCst);
                if to_act.send(learnt).is_err() || free.send((i, learnt)).is_err() {
                    return;
                }
            }
        })
    };
    let mut learnt = 0;
    while learnt < n.min(dies.1) {
        let Ok((i, acted)) = rollouts.recv() else { break };
        assert_eq!(i, learnt, "rollouts come in order, none lost");
        assert!(learnt - acted <= k, "the lag is bounded");
        assert!(made.load(Ordering::SeqCst) as u64 <= learnt + k + 1, "nobody runs further ahead");
        learnt += 1;
        let returned = orders.try_recv();
        if rollouts.send((0, 0)).is_err() || !matches!(returned, Ok(Some(_))) || orders.send(learnt).is_err() {
            assert!(dies.0 < n || learnt + k >= n, "the producer has left too early");
        }
    }
    drop((orders, rollouts));
    producer.join().unwrap();
    assert_eq!(learnt, n.min(dies.0).min(dies.1));
}

#[test]
fn nothing_is_lost_or_late_or_hangs_in_any_order_of_turns() {
    for k in 0..3 {
        for dies in [(9, 9), (2, 9), (9, 2), (0, 9), (9, 0), (3, 3)] {
            shuttle::check_random(move || pipeline(k, 5, dies), 300);
        }
    }
}

#[test]
fn a_ring_of_three_passes_every_buffer_on_in_order() {
    shuttle::check_random(
        || {
            let [source, transform, sink] = ring::ring([0u32; 2]);
            let first = thread::spawn(move || {
                for i in 0..5 {
                    source.recv().unwrap();
                    source.send(i).unwrap();
                }
            });
            let second = thread::spawn(move || {
                while let Ok(x) = transform.recv() {
                    if transform.send(10 * x).is_err() {
                        return;
                    }
                }
            });
            for i in 0..5 {
                assert_eq!(sink.recv(), Ok(10 * i));
                // The source may have ended after its last rollout.
                assert!(sink.send(0).is_ok() || i >= 3);
            }
            assert_eq!(sink.recv(), Err(ring::Closed));
            first.join().unwrap();
            second.join().unwrap();
        },
        1000,
    );
}
