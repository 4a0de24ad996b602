//! The channels that [`ring`](crate::ring) is made of. Tests of its protocol put others in their place, whose threads take turns in
//! every order.

pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
