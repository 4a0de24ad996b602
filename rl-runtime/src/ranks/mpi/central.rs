//! Environments on other ranks, for which the learner's rank chooses all actions.
//!
//! A [`DistantEnv`] stands for each of them: it sends a call, and waits for the answer. The learner batches those that have
//! answered, as it does with environments of its own. Here, too, a rank only passes messages on, to a process that has the
//! environments and is replaced when it fails; the calls in flight then fail, and these environments begin new episodes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rl_agents::ranks::share;
use rl_agents::{CollectorState, Policy};
use rl_buffer::RolloutShape;
use rl_envs::catalog::Entry;
use rl_envs::pool::panic_text;
use rl_envs::{
    Action, ActionSpace, Actions, BlockingEnv, Constructor, Dtype, Element, EnvError, Obs, Purpose, Rng, Space, Spaces, Step,
    codec,
};
use serde::{Deserialize, Serialize};

use crate::channel::{Receiver, Sender, bounded};
use crate::pipeline::blocking::BlockingEnvs;
use crate::pipeline::first_come::FirstComeCollector;
use crate::pipeline::{Collect, Filled};
use crate::ranks::mpi::messages::{LEARNER, MessageKind};
use crate::ranks::mpi::process::{ActorRank, Heard, Link, Say, failed};
use crate::ranks::mpi::remote::{LOOK, Mail};
use crate::report::profile::Track;
use crate::run::assemble::blocking;
use crate::thread::{Thread, spawn};
use crate::{Config, Error, interrupt};

/// Calls that may wait for the thread that sends them, for each environment.
const WAITING: usize = 4;

/// Call of an environment on another rank.
#[derive(Debug, Serialize, Deserialize)]
struct EnvCall {
    /// Index of the environment within its rank, and number of the call.
    to: (u32, u64),
    /// Seed of the call's random numbers.
    seed: u64,
    ask: Ask,
}

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Start an episode, in a new environment if `fresh`.
    Reset {
        fresh: bool,
    },
    Discrete(u32),
    Continuous(Vec<f32>),
}

/// Answer of an environment.
///
/// Reward, terminated, truncated, observation (D), legal actions (A); or a fault, and true if the call may be repeated.
type Answered<O> = Result<(f32, bool, bool, Vec<O>, Vec<u8>), (String, bool)>;

/// Work for the thread that exchanges messages with a rank.
enum Post {
    /// Answers of the environment with this index and call go there.
    Expect((u32, u64), Sender<Vec<u8>>),
    /// A message for the rank.
    Send(Vec<u8>),
}

/// Environment on another rank.
struct DistantEnv<O> {
    env: u32,
    spaces: Spaces,
    requests: Sender<Post>,
    calls: Arc<AtomicU64>,
    /// True until the first reset.
    fresh: bool,
    mask: Vec<u8>,
    obs: std::marker::PhantomData<O>,
}

impl<O: Element> DistantEnv<O> {
    fn call(&mut self, rng: &mut Rng, ask: Ask, obs: &mut [O]) -> Result<Step, EnvError> {
        let lost = |cause: &str| EnvError { cause: cause.into(), may_repeat: false };
        let to = (self.env, self.calls.fetch_add(1, Ordering::Relaxed));
        let seed = u64::from(rng.next_u32()) << 32 | u64::from(rng.next_u32());
        let message = MessageKind::Call.encode(&EnvCall { to, seed, ask }).map_err(|error| lost(&error.to_string()))?;
        let (answer, answers) = bounded(1);
        let sent = self.requests.send(Post::Expect(to, answer)).and_then(|()| self.requests.send(Post::Send(message)));
        sent.map_err(|_| lost("the training ends"))?;
        let answer = answers.recv().map_err(|_| lost("its rank has ended"))?;
        let answered: Answered<O> = codec::decode(&answer).map_err(|error| lost(&error.to_string()))?;
        let (reward, terminated, truncated, found, mask) =
            answered.map_err(|(cause, may_repeat)| EnvError { cause, may_repeat })?;
        if found.len() != obs.len() {
            return Err(lost("its observation has another length"));
        }
        obs.copy_from_slice(&found);
        self.mask = mask;
        Ok(Step { reward, terminated, truncated })
    }
}

impl<O: Element> BlockingEnv for DistantEnv<O> {
    type Obs = O;

    fn observation_space(&self) -> Space {
        self.spaces.obs.clone()
    }

    fn action_space(&self) -> ActionSpace {
        self.spaces.actions.clone()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        let fresh = std::mem::take(&mut self.fresh);
        self.call(rng, Ask::Reset { fresh }, obs).map(drop)
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        let ask = match action {
            Actions::Discrete(action) => Ask::Discrete(action),
            Actions::Continuous(action) => Ask::Continuous(action.into()),
        };
        self.call(rng, ask, obs)
    }

    fn mask(&self, mask: &mut [u8]) {
        if mask.len() == self.mask.len() {
            mask.copy_from_slice(&self.mask);
        }
    }
}

/// Collector of environments on other ranks, with the threads of their messages.
struct Central {
    collector: Box<dyn Collect>,
    stop: Arc<AtomicBool>,
    threads: Vec<Thread<()>>,
    failed: Failed,
}

/// A rank whose process failed too often, and why.
type Failed = Arc<Mutex<Option<(usize, String)>>>;

impl Collect for Central {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        self.collector.collect(policy, learnt, filled, track).map_err(|error| {
            let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
            failed.map_or(error, |(rank, text)| rl_agents::Error::Rank { rank, text }.into())
        })
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        self.collector.shape(n_steps)
    }

    fn remember(&mut self, len: usize) -> Result<(), Error> {
        self.collector.remember(len)
    }

    fn save(&self) -> Result<CollectorState, Error> {
        self.collector.save()
    }

    fn load(&mut self, state: CollectorState) -> Result<(), Error> {
        self.collector.load(state)
    }

    fn stopper(&self) -> Arc<AtomicBool> {
        self.collector.stopper()
    }

    fn counter(&self) -> Option<Arc<AtomicU64>> {
        self.collector.counter()
    }
}

impl Drop for Central {
    /// Ends the messages before MPI ends.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Creates a collector of `n_envs` environments, shared out among the other ranks.
///
/// # Errors
/// The errors of [`BlockingEnvs::new`] and [`FirstComeCollector::new`].
pub(super) fn collector<M: Mail + Copy>(
    mail: M,
    n_ranks: usize,
    config: &Config,
    entry: &Entry,
) -> Result<Box<dyn Collect>, Error> {
    let (n_envs, n_actors) = (config.run.n_envs, n_ranks - 1);
    let (mut by_env, mut by_rank) = (Vec::with_capacity(n_envs), Vec::with_capacity(n_actors));
    for rank in 1..n_ranks {
        let envs = share(n_envs, rank - 1, n_actors);
        let (requests, asked) = bounded(WAITING * envs.len().max(1));
        by_env.extend((0..envs.len() as u32).map(|env| (env, requests.clone())));
        by_rank.push((rank, asked));
    }
    let collector = match entry.spaces().obs.dtype() {
        Dtype::F32 => of::<f32>(by_env, config, entry)?,
        Dtype::U8 => of::<u8>(by_env, config, entry)?,
    };
    let (stop, failed, stopper) = (Arc::<AtomicBool>::default(), Failed::default(), collector.stopper());
    let threads = by_rank.into_iter().map(|(rank, asked)| {
        let (stop, failed, stopper) = (stop.clone(), failed.clone(), stopper.clone());
        spawn(&format!("rank-{rank}"), move || {
            let Some(text) = deliver(&mail, rank, &asked, &stop) else { return };
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((rank, text));
            stopper.store(true, Ordering::Relaxed);
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            mail.send_message(&MessageKind::End.with(&[]), rank);
        })
    });
    let threads = threads.collect::<Result<_, _>>()?;
    Ok(Box::new(Central { collector, stop, threads, failed }))
}

/// Creates the collector of distant environments, by index and rank.
fn of<O: Element>(by_env: Vec<(u32, Sender<Post>)>, config: &Config, entry: &Entry) -> Result<Box<dyn Collect>, Error> {
    let (spaces, calls) = (entry.spaces(), Arc::<AtomicU64>::default());
    let n_envs = by_env.len();
    let make = {
        let spaces = spaces.clone();
        move |i: usize| {
            let (env, requests) = by_env[i].clone();
            let (spaces, calls) = (spaces.clone(), calls.clone());
            Ok(DistantEnv::<O> { env, spaces, requests, calls, fresh: true, mask: Vec::new(), obs: std::marker::PhantomData })
        }
    };
    let envs = BlockingEnvs::new(n_envs, spaces, Arc::new(make), config.faults(), config.run.seed)?;
    Ok(Box::new(FirstComeCollector::new(envs, config.n_steps(), config.first_come())?))
}

/// Exchanges messages with a rank until `stop` is set.
///
/// Returns the rank's error, if it has failed.
fn deliver(mail: &impl Mail, rank: usize, asked: &Receiver<Post>, stop: &AtomicBool) -> Option<String> {
    // The latest call of each environment; an answer to an earlier one is late, and dropped.
    let mut expected = BTreeMap::<u32, (u64, Sender<Vec<u8>>)>::new();
    while !stop.load(Ordering::Relaxed) {
        for request in asked.try_iter() {
            match request {
                Post::Expect((env, call), answer) => drop(expected.insert(env, (call, answer))),
                Post::Send(message) => mail.send_message(&message, rank),
            }
        }
        while let Some(message) = mail.try_receive_message(rank) {
            match MessageKind::split(&message) {
                Some((MessageKind::Answer, contents)) => {
                    let Ok(((env, call), left)) = codec::decode_from::<(u32, u64)>(contents, contents.len() as u64) else {
                        continue;
                    };
                    if let Occupied(waiting) = expected.entry(env)
                        && waiting.get().0 == call
                    {
                        let _ = waiting.remove().1.send(contents[contents.len() - left as usize..].into());
                    }
                }
                Some((MessageKind::Interrupted, _)) => interrupt::request(),
                Some((MessageKind::Failed, text)) => return Some(String::from_utf8_lossy(text).into()),
                _ => return Some("it sent no answer".into()),
            }
        }
        // A wait of the channel would spin for a while.
        std::thread::sleep(LOOK);
    }
    mail.send_message(&MessageKind::End.with(&[]), rank);
    None
}

/// Passes calls to the process of this rank's environments until the last one.
///
/// Its answers go to the learner.
///
/// # Errors
/// [`Error::Actor`] if the process was replaced too often.
pub(super) fn relay(mail: &impl Mail, actor: &mut ActorRank<'_>) -> Result<(), Error> {
    let (heard, frames): (Heard, _) = bounded(WAITING);
    let mut waiting = BTreeMap::<u32, u64>::new();
    loop {
        let mut lost = None;
        for (process, frame) in frames.try_iter() {
            if process != actor.started() {
                continue;
            }
            match frame.as_deref().map(MessageKind::split) {
                Ok(Some((MessageKind::Answer, contents))) => {
                    let ((env, call), _) = codec::decode_from::<(u32, u64)>(contents, contents.len() as u64)?;
                    if waiting.get(&env) == Some(&call) {
                        waiting.remove(&env);
                    }
                    mail.send_message(&MessageKind::Answer.with(contents), LEARNER);
                }
                Ok(Some((MessageKind::Failed, text))) => lost = Some(failed(text)),
                Ok(_) => {}
                Err(cause) => lost = Some(cause.clone()),
            }
        }
        while lost.is_none()
            && let Some(message) = mail.try_receive_message(LEARNER)
        {
            let Some((MessageKind::Call, contents)) = MessageKind::split(&message) else { return Ok(()) };
            let ((env, call), _) = codec::decode_from::<(u32, u64)>(contents, contents.len() as u64)?;
            waiting.insert(env, call);
            lost = actor.start(0, Some(&heard)).and_then(|()| actor.send(&message)).err();
        }
        actor.tell_of_interrupt(mail);
        if let Some(cause) = lost {
            let replaced = actor.lose(cause);
            for (env, call) in std::mem::take(&mut waiting) {
                let cause = "its process has failed".to_string();
                let answer: Answered<f32> = Err((cause, false));
                mail.send_message(&MessageKind::Answer.encode(&((env, call), answer))?, LEARNER);
            }
            replaced?;
        }
        std::thread::sleep(LOOK);
    }
}

/// Steps environments as the learner calls, each on its own thread.
pub(super) fn serve(link: &mut Link, config: &Config, entry: &Entry, say: &Say) -> Result<(), Error> {
    let Some(make) = blocking(config, entry) else { return Err(Error::config(format!("{} does not block", entry.name))) };
    let mut threads = BTreeMap::<u32, Sender<EnvCall>>::new();
    while let Ok(message) = link.read() {
        let Some((MessageKind::Call, contents)) = MessageKind::split(&message) else { break };
        let call: EnvCall = codec::decode(contents)?;
        let env = call.to.0;
        if matches!(call.ask, Ask::Reset { fresh: true }) {
            threads.remove(&env);
        }
        let thread = match threads.entry(env) {
            Occupied(thread) => thread.into_mut(),
            Vacant(place) => place.insert(start(make, entry, env, say)?),
        };
        // The thread ends once the rank hears no more, as does this loop.
        let _ = thread.send(call);
    }
    Ok(())
}

/// Starts the thread of a new environment.
fn start(make: Obs<Constructor<f32>, Constructor<u8>>, entry: &Entry, env: u32, say: &Say) -> Result<Sender<EnvCall>, Error> {
    let (calls, asked) = bounded(WAITING);
    let (spaces, say) = (entry.spaces(), say.clone());
    let name = format!("env-{env}");
    match make {
        Obs::F32(make) => spawn(&name, move || answer_all(make, &spaces, &asked, &say)).map(drop)?,
        Obs::U8(make) => spawn(&name, move || answer_all(make, &spaces, &asked, &say)).map(drop)?,
    }
    Ok(calls)
}

/// Body of the thread of an environment.
fn answer_all<O: Element>(make: Constructor<O>, Spaces { obs, actions }: &Spaces, asked: &Receiver<EnvCall>, say: &Say) {
    let mut env = None;
    for EnvCall { to, seed, ask } in asked {
        let mut found = vec![O::default(); obs.len()];
        let mut mask = vec![0; if actions.masked() { actions.len() } else { 0 }];
        let mut answer = || -> Result<Step, EnvError> {
            let env = match (&ask, &mut env) {
                (Ask::Reset { .. }, env) => env.get_or_insert_with(make),
                (_, Some(env)) => env,
                (_, None) => return Err(EnvError { cause: "its process was replaced".into(), may_repeat: false }),
            };
            let rng = &mut Rng::new(seed, to.0, 0, Purpose::Step);
            let step = match &ask {
                Ask::Reset { .. } => env.reset(rng, &mut found).map(|()| Step::default()),
                Ask::Discrete(action) => env.step(Actions::Discrete(*action), rng, &mut found),
                Ask::Continuous(action) => env.step(Actions::Continuous(action), rng, &mut found),
            }?;
            env.mask(&mut mask);
            Ok(step)
        };
        let answer = catch_unwind(AssertUnwindSafe(&mut answer))
            .unwrap_or_else(|panic| Err(EnvError { cause: format!("panicked: {}", panic_text(&*panic)), may_repeat: false }));
        let answered: Answered<O> = match answer {
            Ok(Step { reward, terminated, truncated }) => Ok((reward, terminated, truncated, found, mask)),
            Err(EnvError { cause, may_repeat }) => Err((cause, may_repeat)),
        };
        let Ok(message) = MessageKind::Answer.encode(&(to, answered)) else { return };
        if say(&message).is_err() {
            return;
        }
    }
}
