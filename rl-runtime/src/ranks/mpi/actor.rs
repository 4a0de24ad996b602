//! An actor: a rank that supervises a process, which has its environments.
//!
//! MPI ends the whole job when a rank dies. The environments of an actor therefore live in a process of their own, which the
//! rank replaces when it dies or hangs. A new process begins new episodes, with a seed of its own.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rl_envs::Pool;
use rl_envs::catalog::Entry;

use crate::config::Mpi;
use crate::config::algo::Build;
use crate::pipeline::{Collect as _, Filled};
use crate::ranks::mpi::central;
use crate::ranks::mpi::messages::{self, BEAT, LEARNER, MessageKind, Role, RolloutOrder};
use crate::ranks::mpi::process::{ActorRank, Link, Say, VERB, write};
use crate::ranks::mpi::remote::Mail;
use crate::report::profile::Profile;
use crate::run::assemble::{collector, with_measured_drive};
use crate::thread::spawn;
use crate::{Config, Error};

/// Supervises the process of an actor until the learner needs it no more.
///
/// `of` are its rank and the number of ranks.
///
/// # Errors
/// [`Error::Actor`] if the process was replaced too often; the learner has been told then.
pub(super) fn supervise(mail: &impl Mail, of: [usize; 2], config: &Config, python: Option<&Path>) -> Result<(), Error> {
    let actor = &mut ActorRank::new(of, config, python);
    let done = if config.run.mpi == Mpi::Central { central::relay(mail, actor) } else { actor.fill_orders(mail) };
    done.inspect_err(|error| {
        mail.send_message(&MessageKind::Failed.with(error.to_string().as_bytes()), LEARNER);
        // The learner saves what it has learnt and ends the job, or needs no more.
        let never = AtomicBool::new(false);
        while let Some(message) = mail.receive_message(LEARNER, &never)
            && !matches!(MessageKind::split(&message), Some((MessageKind::End, _)))
        {}
    })
}

/// Works for the rank that has started this process, until that closes the socket.
///
/// `open` returns the environment of a configuration.
///
/// # Errors
/// [`Error::Io`] if there is no such rank.
pub(crate) fn work(open: impl FnOnce(&Config) -> Result<Entry, Error>) -> Result<(), Error> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::io(VERB))?;
    let socket = UnixStream::from(socket);
    let out = Mutex::new(socket.try_clone().map_err(Error::io(VERB))?);
    let say: Say = Arc::new(move |message| write(&out.lock().unwrap_or_else(PoisonError::into_inner), message));
    spawn("beat", {
        let say = say.clone();
        move || {
            let beat = MessageKind::Beat.with(&[]);
            while say(&beat).is_ok() {
                std::thread::sleep(BEAT);
            }
        }
    })?;
    let mut link = Link::new(socket);
    match play(&mut link, open, &say) {
        Err(error) => say(&MessageKind::Failed.with(error.to_string().as_bytes())).map_err(Error::io(VERB)),
        Ok(()) => Ok(()),
    }
}

/// Plays the part that the first message describes.
fn play(link: &mut Link, open: impl FnOnce(&Config) -> Result<Entry, Error>, say: &Say) -> Result<(), Error> {
    let Ok(role) = link.read() else { return Ok(()) };
    let Some((MessageKind::Role, role)) = MessageKind::split(&role) else {
        return Err(Error::config("this verb is for the ranks of mpirun"));
    };
    let role: Role = rl_envs::codec::decode(role)?;
    let mut config = Config::from_toml(&role.settings, "the learner")?;
    let mpi = std::mem::replace(&mut config.run.mpi, Mpi::Off);
    config.run.seed = role.seed;
    let entry = &config.wrapped(&open(&config)?);
    let config = with_measured_drive(&config, entry)?;
    if mpi == Mpi::Central { central::serve(link, &config, entry, say) } else { collect(link, &config, role.actor, entry, say) }
}

/// Collects a rollout for each order.
///
/// `of` are the index of the actor and the number of actors.
fn collect(link: &mut Link, config: &Config, of: [usize; 2], entry: &Entry, say: &Say) -> Result<(), Error> {
    let pool = Pool::new(config.run.threads)?;
    let mut envs = collector(config, entry, &pool, None)?;
    let track = Profile::new(false).track("actor");
    let mut filled = None;
    while let Ok(message) = link.read() {
        let Some((MessageKind::Order, order)) = MessageKind::split(&message) else { break };
        let order = RolloutOrder::decode(order)?;
        let (learnt, remaining) = (order.learnt, order.remaining);
        let [actor, n_collectors] = of;
        let build = config.build(entry, false);
        let build = Build { n_collectors, first_env: actor * build.n_envs, ..build };
        let policy = config.algo.settings().policy(&build, &order.snapshot(), remaining)?;
        let first = filled.is_none();
        if first {
            envs.remember(policy.state_len())?;
        }
        let shape = envs.shape(config.n_steps());
        let filled = match &mut filled {
            Some(filled) => filled,
            empty => empty.insert(Filled::new(rl_buffer::Rollout::new(shape).map_err(rl_agents::Error::from)?)),
        };
        envs.collect(&*policy, learnt, filled, &track)?;
        // Those of a process before this one were cut off.
        filled.rollout.cut_before |= first;
        if say(&messages::encode(filled)?).is_err() {
            break;
        }
    }
    Ok(())
}
