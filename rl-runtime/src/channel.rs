//! Channels of [`ring`](crate::ring).
//!
//! Tests of the protocol replace them with shuttle's channels, to run the threads in many orders.

pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
