//! Channels of [`ring`](crate::ring).
//!
//! Tests of the protocol replace them with channels whose threads run in every order.

pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
