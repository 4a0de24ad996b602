//! Recorded steps, to learn from without an environment.
//!
//! `rl record` writes a recording, and the setting `offline = FILE` plays it in place of environments.
//!
//! A file holds the magic number `rlrecord`, the length of its head (u64), the [`Heading`], then blocks. A block is its length in
//! bytes (u64), the BLAKE3 hash of its steps, and its steps, `block_steps` of them. A step of N environments (D elements of an
//! observation, A actions of a mask, K elements of a continuous action) is, little-endian:
//!
//! | part | size |
//! |---|---|
//! | observations before it | N D of f32 or u8 |
//! | legal actions there, if there are masks | N A of u8 |
//! | actions | N of u32, or N K of f32 |
//! | rewards | N of f32 |
//! | terminated, truncated | N of u8 each |
//! | for each environment whose episode ended: final observation, legal actions there | D and A each |
//!
//! The last step truncates all episodes, so the first one may follow it: a recording that is shorter than the training begins
//! again.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rl_agents::{CollectorState, Episode, Policy};
use rl_buffer::{ActionKind, ActionSlice, Batch, Dtype, ObsSlice, ReplayBuffer, Rollout, RolloutShape};
use rl_envs::{ActionSliceMut, ObsSliceMut, Spaces, codec};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::{Config, EnvConfig, RunConfig};
use crate::file::{open, refused};
use crate::pipeline::{Collect, Filled};
use crate::report::profile::{Phase, Track};
use crate::sources::catalog;

pub(super) const MAGIC: &[u8; 8] = b"rlrecord";
/// First bytes of a saved replay memory.
const REPLAY: &[u8; 8] = b"rlreplay";
/// Largest head.
const MAX_HEAD: u64 = 1 << 16;
/// Approximate size of a block in bytes, and most steps.
const BLOCK: usize = 1 << 18;
const BLOCK_STEPS: u64 = 128;

/// Facts about a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Heading {
    /// Environment with its settings, as JSON.
    env: String,
    pub(super) n_envs: usize,
    obs_len: usize,
    /// True if observations are bytes.
    bytes: bool,
    /// Elements of a continuous action; 0 if actions are discrete.
    action_len: usize,
    /// Actions in a mask; 0 without masks.
    mask_len: usize,
    /// Steps of each environment, and of a block.
    pub(super) steps: u64,
    pub(super) block_steps: u64,
}

impl Heading {
    /// Describes a recording of at least `env_steps` env steps.
    pub(super) fn new(env: &str, shape: &RolloutShape, env_steps: u64) -> Self {
        let (action_len, mask_len) = match shape.actions {
            ActionKind::Discrete { masked } => (0, masked.unwrap_or(0)),
            ActionKind::Continuous { len } => (len, 0),
        };
        let bytes = shape.obs == Dtype::U8;
        let (n_envs, obs_len) = (shape.n_envs, shape.obs_len);
        let mut head = Self { env: env.into(), n_envs, obs_len, bytes, action_len, mask_len, steps: 0, block_steps: 1 };
        let steps = env_steps.div_ceil(n_envs as u64).max(1);
        let blocks = steps.div_ceil(((BLOCK / head.max_bytes()) as u64).clamp(1, BLOCK_STEPS));
        head.block_steps = steps.div_ceil(blocks);
        head.steps = blocks * head.block_steps;
        head
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        let actions = match (self.action_len, self.mask_len) {
            (0, masked) => ActionKind::Discrete { masked: (masked > 0).then_some(masked) },
            (len, _) => ActionKind::Continuous { len },
        };
        let obs = if self.bytes { Dtype::U8 } else { Dtype::F32 };
        RolloutShape { n_steps, n_envs: self.n_envs, obs_len: self.obs_len, obs, actions, state_len: 0 }
    }

    /// Bytes of an observation and its mask.
    fn obs_bytes(&self) -> usize {
        self.obs_len.saturating_mul(if self.bytes { 1 } else { 4 }).saturating_add(self.mask_len)
    }

    /// Size of a step in which no episode ends, in bytes.
    fn min_bytes(&self) -> usize {
        let each = self.obs_bytes().saturating_add(self.action_len.max(1).saturating_mul(4)).saturating_add(6);
        each.saturating_mul(self.n_envs).max(1)
    }

    /// Largest size of a step in bytes.
    fn max_bytes(&self) -> usize {
        self.min_bytes().saturating_add(self.obs_bytes().saturating_mul(self.n_envs))
    }
}

pub(super) fn obs_bytes(obs: ObsSlice<'_>) -> &[u8] {
    obs.either(bytemuck::cast_slice, |obs| obs)
}

fn obs_bytes_mut(obs: ObsSliceMut<'_>) -> &mut [u8] {
    obs.either(bytemuck::cast_slice_mut, |obs| obs)
}

/// Origin of the steps.
enum Origin {
    /// A file of `rl record`, with the position of its first block.
    Record(BufReader<File>, u64),
    /// A replay memory, with a batch of a step.
    ///
    /// Each transition is an episode, or the end of one.
    Replay(Box<ReplayBuffer>, Box<Batch>),
}

/// Recorded steps in place of environments.
pub(crate) struct Playback {
    path: PathBuf,
    source: Origin,
    head: Heading,
    /// Number of actions, to check them.
    n_actions: u32,
    /// Current block, and the offset of its next step.
    block: Vec<u8>,
    at: usize,
    /// Steps played so far.
    played: u64,
    running: Vec<Episode>,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("is damaged: {what}"))
}

/// Opens a recording and reads its heading.
fn open_any(path: &Path) -> Result<(Origin, Heading), Error> {
    let unfit = |why: String| Error::config(format!("{}: {why}", path.display()));
    let unknown = || unfit("is neither what `rl record` wrote nor the replay.bin of a checkpoint".into());
    let (file, size) = open(path).map_err(refused(path, ""))?;
    let mut input = BufReader::new(file);
    let mut read = || -> io::Result<_> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        Ok(magic)
    };
    let magic = read().map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => unknown(),
        _ => Error::io(path)(error),
    })?;
    if magic == *REPLAY {
        input.seek(SeekFrom::Start(0)).map_err(Error::io(path))?;
        let replay = ReplayBuffer::load_any(&mut input, size).map_err(|error| unfit(error.to_string()))?;
        let shape = *replay.shape();
        if shape.n_step > 1 {
            let n = shape.n_step;
            return Err(unfit(format!(
                "holds sums of {n} rewards, because dqn.n_steps was {n}; use the replay memory of a run with dqn.n_steps = 1, or a file of `rl record`"
            )));
        }
        let steps = (replay.len() / shape.n_envs) as u64;
        if steps == 0 || shape.gamma == 0.0 {
            return Err(unfit(
                "holds less than a step, or was written with dqn.gamma = 0, so it does not tell where episodes ended".into(),
            ));
        }
        let batch = replay.batch(shape.n_envs).map_err(rl_agents::Error::from)?;
        let of = RolloutShape {
            n_steps: 1,
            n_envs: shape.n_envs,
            obs_len: shape.obs_len,
            obs: shape.obs,
            actions: shape.actions,
            state_len: 0,
        };
        let head = Heading { steps, block_steps: 1, ..Heading::new("", &of, 1) };
        return Ok((Origin::Replay(Box::new(replay), Box::new(batch)), head));
    }
    if magic != *MAGIC {
        return Err(unknown());
    }
    let mut head = || -> io::Result<(Heading, u64)> {
        let mut len = [0; 8];
        input.read_exact(&mut len)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_HEAD {
            return Err(damaged("its head"));
        }
        let mut bytes = vec![0; len as usize];
        input.read_exact(&mut bytes)?;
        let head: Heading = codec::decode(&bytes).map_err(|error| damaged(&error.to_string()))?;
        let whole =
            (1..=BLOCK_STEPS).contains(&head.block_steps) && head.steps > 0 && head.steps.is_multiple_of(head.block_steps);
        if !whole || head.n_envs == 0 || head.obs_len == 0 || head.block_steps.checked_mul(head.max_bytes() as u64).is_none() {
            return Err(damaged("its head"));
        }
        // Before anything is allocated for as many environments as the head says.
        if (head.steps as u128).saturating_mul(head.min_bytes() as u128) > u128::from(size) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok((head, 16 + len))
    };
    let (head, begin) = head().map_err(|error| {
        unfit(if error.kind() == ErrorKind::UnexpectedEof { "ends too early".into() } else { error.to_string() })
    })?;
    Ok((Origin::Record(input, begin), head))
}

impl Playback {
    /// Opens the recording of a run, in an environment with these spaces.
    ///
    /// # Errors
    /// [`Error::Config`] if the file is not a recording, or of another environment; [`Error::Io`] if it cannot be read.
    pub(crate) fn open(config: &Config, spaces: &Spaces) -> Result<Self, Error> {
        let RunConfig { offline, n_envs, .. } = &config.run;
        let playback = Self::of(Path::new(offline), spaces, *n_envs)?;
        let (recorded, env) = (&playback.head.env, config.env.to_json());
        // Settings that did not exist when it was recorded have their defaults.
        let is_other = || {
            let Ok(mut recorded) = serde_json::from_str::<EnvConfig>(recorded) else { return true };
            catalog::complete_old(&recorded.name, &mut recorded.settings);
            recorded.settings = catalog::complete(&recorded.name, recorded.settings).unwrap_or_default();
            // Its module may have moved.
            recorded.path.clone_from(&config.env.path);
            recorded != config.env
        };
        let problem = match playback.source {
            Origin::Record(..) if is_other() => format!("was recorded in {recorded}; the environment is {env}"),
            Origin::Replay(..) if config.traits().replay.is_some_and(|replay| replay.n_step > 1) => {
                format!("holds transitions of one step; use --set {}.n_steps=1", config.algo.name())
            }
            _ => return Ok(playback),
        };
        Err(Error::config(format!("{offline}: {problem}")))
    }

    /// Returns the number of environments of a recording.
    ///
    /// # Errors
    /// [`Error::Config`] if the file is not a recording; [`Error::Io`] if it cannot be read.
    #[cfg(feature = "cli")]
    pub(crate) fn n_envs(path: &Path) -> Result<usize, Error> {
        Ok(open_any(path)?.1.n_envs)
    }

    /// Opens a recording of `n_envs` environments with these spaces.
    fn of(path: &Path, Spaces { obs, actions }: &Spaces, n_envs: usize) -> Result<Self, Error> {
        let (source, head) = open_any(path)?;
        let (found, expected) = (head.shape(1), RolloutShape::new(1, head.n_envs, obs, actions));
        if found != expected {
            let what = format!(
                "{}: its observations have {} elements of {:?}, and its actions are {:?}; the environment has observations of {} elements of {:?}, and actions {:?}",
                path.display(),
                found.obs_len,
                found.obs,
                found.actions,
                expected.obs_len,
                expected.obs,
                expected.actions
            );
            return Err(Error::config(what));
        }
        if head.n_envs != n_envs {
            let text = format!(
                "{} holds steps of {} environments, but n_envs is {n_envs}; use --envs {}",
                path.display(),
                head.n_envs,
                head.n_envs
            );
            return Err(Error::config(text));
        }
        let n_actions = actions.n_discrete().unwrap_or(0);
        let running = vec![Episode::default(); n_envs];
        Ok(Self { path: path.into(), source, head, n_actions, block: Vec::new(), at: 0, played: 0, running })
    }

    /// Reads the next block if the current one has no steps left.
    fn ready(&mut self) -> io::Result<()> {
        if self.at < self.block.len() {
            return Ok(());
        }
        let Self { source, head, block, played, .. } = self;
        self.at = 0;
        let step = *played % head.steps;
        match source {
            Origin::Record(input, begin) => {
                if step == 0 {
                    input.seek(SeekFrom::Start(*begin))?;
                }
                let (mut len, mut hash) = ([0; 8], [0; blake3::OUT_LEN]);
                input.read_exact(&mut len)?;
                input.read_exact(&mut hash)?;
                let len = u64::from_le_bytes(len);
                if len == 0 || len > head.block_steps * head.max_bytes() as u64 {
                    return Err(damaged("a block has an impossible length"));
                }
                block.clear();
                let read = input.by_ref().take(len).read_to_end(block)?;
                if read as u64 != len || blake3::hash(block) != hash {
                    return Err(damaged("the hash of a block differs"));
                }
            }
            Origin::Replay(replay, batch) => {
                replay.copy_to(step as usize * head.n_envs, batch).map_err(io::Error::other)?;
                encode_transitions(head, batch, block);
            }
        }
        Ok(())
    }

    /// Plays the next step as step `t` of a rollout.
    fn play(&mut self, filled: &mut Filled, t: usize) -> io::Result<()> {
        self.ready()?;
        let Self { source, head, block, at, running, .. } = self;
        let mut rest = &block[*at..];
        let mut take = |n: usize| {
            let (first, others) = rest.split_at_checked(n).ok_or_else(|| damaged("a step is cut"))?;
            rest = others;
            io::Result::Ok(first)
        };
        let mut columns = filled.rollout.columns();
        let (obs, masks) = columns.start(t);
        read_obs(&mut take, obs)?;
        masks.map_or(Ok(()), |masks| read(&mut take, masks))?;
        let (_, _, (actions, log_probs, values)) = columns.act(t);
        // No policy of this program has acted.
        log_probs.fill(f32::NAN);
        values.fill(f32::NAN);
        match actions {
            ActionSliceMut::Discrete(actions) => {
                read(&mut take, bytemuck::cast_slice_mut(actions))?;
                if let Some(action) = actions.iter().find(|action| **action >= self.n_actions) {
                    return Err(damaged(&format!("it holds action {action}, and there are {}", self.n_actions)));
                }
            }
            ActionSliceMut::Continuous(actions) => read(&mut take, bytemuck::cast_slice_mut(actions))?,
        }
        let step = columns.step(t);
        read(&mut take, bytemuck::cast_slice_mut(step.rewards))?;
        read(&mut take, step.terminated)?;
        read(&mut take, step.truncated)?;
        let flags = step.terminated.iter().chain(step.truncated.iter());
        if step.rewards.iter().any(|reward| !reward.is_finite()) || flags.copied().any(|flag| flag > 1) {
            return Err(damaged("a reward is not finite, or a flag is neither 0 nor 1"));
        }
        let mut ended = Vec::new();
        for (n, episode) in running.iter_mut().enumerate() {
            episode.episode_return += f64::from(step.rewards[n]);
            episode.length += 1;
            if step.terminated[n] | step.truncated[n] == 1 {
                let episode = std::mem::take(episode);
                // The transitions of a replay memory are not whole episodes.
                filled.episodes.extend(matches!(source, Origin::Record(..)).then_some(episode));
                ended.push(n);
            }
        }
        for n in ended {
            let (obs, mask) = take(head.obs_bytes())?.split_at(head.obs_bytes() - head.mask_len);
            if head.bytes {
                filled.rollout.push_final(t, n, ObsSlice::U8(obs), mask, &[]);
            } else {
                let mut numbers = vec![0.0f32; head.obs_len];
                bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(obs);
                filled.rollout.push_final(t, n, ObsSlice::F32(&numbers), mask, &[]);
            }
        }
        *at = block.len() - rest.len();
        self.played += 1;
        Ok(())
    }

    fn fill(&mut self, filled: &mut Filled) -> io::Result<()> {
        filled.rollout.clear();
        filled.episodes.clear();
        let n_steps = filled.rollout.shape().n_steps;
        for t in 0..n_steps {
            self.play(filled, t)?;
        }
        // The observations after the last step are those of the next one.
        self.ready()?;
        let mut columns = filled.rollout.columns();
        let (obs, masks) = columns.start(n_steps);
        let (obs, masks) = (obs_bytes_mut(obs), masks.unwrap_or_default());
        let next = self.block.get(self.at..).and_then(|rest| rest.split_at_checked(obs.len()));
        let (first, others) = next.ok_or_else(|| damaged("a step is cut"))?;
        obs.copy_from_slice(first);
        masks.copy_from_slice(others.get(..masks.len()).ok_or_else(|| damaged("a step is cut"))?);
        Ok(())
    }
}

/// Copies the next observations, which are finite.
fn read_obs<'a>(take: &mut impl FnMut(usize) -> io::Result<&'a [u8]>, obs: ObsSliceMut<'_>) -> io::Result<()> {
    match obs {
        ObsSliceMut::F32(obs) => {
            read(take, bytemuck::cast_slice_mut(obs))?;
            if obs.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(damaged("an observation is not finite")) }
        }
        ObsSliceMut::U8(obs) => read(take, obs),
    }
}

/// Copies the next bytes.
fn read<'a>(take: &mut impl FnMut(usize) -> io::Result<&'a [u8]>, to: &mut [u8]) -> io::Result<()> {
    to.copy_from_slice(take(to.len())?);
    Ok(())
}

/// Writes transitions as a step that ends all episodes.
///
/// A transition with discount 0 is terminated, any other is truncated.
fn encode_transitions(head: &Heading, batch: &Batch, out: &mut Vec<u8>) {
    let batch = batch.columns();
    out.clear();
    out.extend_from_slice(obs_bytes(batch.obs));
    // The replay memory has no masks of the observations acted on, and DQN does not need them.
    out.resize(out.len() + head.n_envs * head.mask_len, 1);
    match batch.actions {
        ActionSlice::Discrete(actions) => out.extend_from_slice(bytemuck::cast_slice(actions)),
        ActionSlice::Continuous(actions) => out.extend_from_slice(bytemuck::cast_slice(actions)),
    }
    out.extend_from_slice(bytemuck::cast_slice(batch.rewards));
    out.extend(batch.discounts.iter().map(|&discount| u8::from(discount == 0.0)));
    out.extend(batch.discounts.iter().map(|&discount| u8::from(discount != 0.0)));
    for n in 0..head.n_envs {
        out.extend_from_slice(obs_bytes(batch.next_obs.row(n, head.obs_len)));
        out.extend_from_slice(&batch.next_masks[n * head.mask_len..][..head.mask_len]);
    }
}

impl Collect for Playback {
    fn collect(&mut self, _policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let begin = Instant::now();
        self.fill(filled).map_err(|error| {
            let error = if error.kind() == ErrorKind::UnexpectedEof { damaged("it ends too early") } else { error };
            Error::io(&self.path)(error)
        })?;
        filled.learnt.fill(learnt);
        track.add(Phase::Envs, begin, begin.elapsed());
        Ok(())
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        self.head.shape(n_steps)
    }

    /// Carries none: no policy acts.
    fn remember(&mut self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn save(&self) -> Result<CollectorState, Error> {
        Ok(CollectorState::without_envs(self.played))
    }

    /// Continues after the steps that were played.
    fn load(&mut self, state: CollectorState) -> Result<(), Error> {
        let mut passed = Filled::new(Rollout::new(self.shape(1)).map_err(rl_agents::Error::from)?);
        for _ in 0..state.steps() % self.head.steps {
            self.play(&mut passed, 0).map_err(Error::io(&self.path))?;
            passed.rollout.clear();
        }
        self.played = state.steps();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rl_agents::{Collector, NetConfig, QNetwork};
    use rl_buffer::TransitionShape;
    use rl_envs::cartpole::CartPole;
    use rl_envs::snake::{Params, Snake};
    use rl_envs::{Env, Pool};

    use super::*;
    use crate::report::profile::Profile;
    use crate::sources::recorder::{Recorder, cut};

    /// Creates a collector of short environments and a policy for them.
    fn fixture<E: Env + 'static>(env: &E, n_envs: usize) -> (Collector, QNetwork) {
        let collector = Collector::new(n_envs, env, &Pool::new(1).unwrap(), 5).unwrap();
        let (obs, actions) = (collector.observation_space(), collector.action_space());
        let policy = QNetwork::new(obs, actions, &NetConfig { hidden: vec![8], ..NetConfig::default() }, false, 5).unwrap();
        (collector, policy)
    }

    fn spaces_of(collector: &Collector) -> Spaces {
        Spaces { obs: collector.observation_space().clone(), actions: collector.action_space().clone() }
    }

    fn record<E: Env + 'static>(env: &E, n_envs: usize, env_steps: u64, path: &Path) {
        let (collector, policy) = fixture(env, n_envs);
        let recorder = Recorder { env: "test".into(), collector: Box::new(collector), policy: &policy, env_steps };
        let track = Profile::new(false).track("test");
        let mut file = File::create(path).unwrap();
        assert!(recorder.write(path, &mut file, &track, &mut |_, _| true).unwrap());
    }

    fn play(playback: &mut Playback, filled: &mut Filled) -> Result<(), Error> {
        let policy = fixture(&CartPole::default(), 1).1;
        playback.collect(&policy, 3, filled, &Profile::new(false).track("test"))
    }

    /// Compares a recording, played in rollouts of another length, with the collector's own rollouts.
    fn plays_back<E: Env + 'static>(env: &E, n_envs: usize) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps");
        record(env, n_envs, 90 * n_envs as u64, &path);
        let (mut collector, policy) = fixture(env, n_envs);
        let spaces = spaces_of(&collector);
        let mut playback = Playback::of(&path, &spaces, n_envs).unwrap();
        assert_eq!((playback.head.steps, Playback::n_envs(&path).unwrap()), (90, n_envs));
        let mut expected = Filled::new(collector.rollout(30).unwrap());
        let mut found = Filled::new(Rollout::new(playback.shape(30)).unwrap());
        let mut ends = 0;
        for i in 0..3 {
            expected.episodes = collector.collect(&policy, &mut expected.rollout).unwrap();
            play(&mut playback, &mut found).unwrap();
            let (found, expected) = (&mut found, &mut expected);
            if i == 2 {
                cut(&mut expected.rollout);
            }
            let (found, expected) = (&found.rollout, &expected.rollout);
            ends += found.final_at().len();
            // The observations after the last step of all are those of the first one.
            let rows = if i == 2 { 30 * n_envs } else { 31 * n_envs };
            assert_eq!(found.obs_rows(0..rows), expected.obs_rows(0..rows));
            let legal =
                |rollout: &Rollout| rollout.masks().map(|masks| masks.iter().take(30 * n_envs).copied().collect::<Vec<_>>());
            assert_eq!(legal(found), legal(expected));
            assert_eq!((found.actions(), found.rewards()), (expected.actions(), expected.rewards()));
            assert_eq!((found.terminated(), found.truncated()), (expected.terminated(), expected.truncated()));
            let finals = |rollout: &Rollout| {
                let d = rollout.shape().obs_len;
                let a = rollout.final_masks().len() / rollout.final_at().len().max(1);
                let of =
                    |i: usize| (obs_bytes(rollout.final_obs().row(i, d)).to_vec(), rollout.final_masks()[i * a..][..a].to_vec());
                let mut finals: Vec<_> = rollout.final_at().iter().copied().zip((0..).map(of)).collect();
                finals.sort();
                finals
            };
            assert_eq!(finals(found), finals(expected));
        }
        assert!(ends > 2 * n_envs, "{ends} ends of episodes");
        // It begins again, also in the middle of a rollout, and after a resumption.
        let first = Playback::of(&path, &spaces, n_envs).map(|mut first| (play(&mut first, &mut expected), first)).unwrap().1;
        play(&mut playback, &mut found).unwrap();
        assert_eq!(found.rollout.obs(), expected.rollout.obs());
        let mut resumed = Playback::of(&path, &spaces, n_envs).unwrap();
        resumed.load(playback.save().unwrap()).unwrap();
        let mut again = Filled::new(Rollout::new(playback.shape(100)).unwrap());
        let mut other = again.rollout.clone();
        play(&mut resumed, &mut again).unwrap();
        std::mem::swap(&mut again.rollout, &mut other);
        play(&mut playback, &mut again).unwrap();
        assert_eq!((again.rollout.obs(), again.rollout.rewards()), (other.obs(), other.rewards()));
        assert_eq!((first.played, playback.played, resumed.played), (30, 220, 220));
    }

    #[test]
    fn a_recording_plays_the_steps_that_were_collected() {
        plays_back(&CartPole::default(), 3);
        plays_back(&Snake::new(Params { rows: 4, columns: 5, max_steps: 30 }), 2);
    }

    /// Collector that drops an episode before its second rollout.
    struct Dropping(Collector, u32);

    impl Collect for Dropping {
        fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
            Collect::collect(&mut self.0, policy, learnt, filled, track)?;
            self.1 += 1;
            filled.rollout.cut_before = self.1 == 2;
            Ok(())
        }

        fn shape(&self, n_steps: usize) -> RolloutShape {
            self.0.shape(n_steps)
        }
    }

    #[test]
    fn an_episode_dropped_between_two_rollouts_is_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps");
        let (collector, policy) = fixture(&CartPole::default(), 3);
        let spaces = spaces_of(&collector);
        let recorder =
            Recorder { env: "test".into(), collector: Box::new(Dropping(collector, 0)), policy: &policy, env_steps: 3 * 300 };
        let track = Profile::new(false).track("test");
        recorder.write(&path, &mut File::create(&path).unwrap(), &track, &mut |_, _| true).unwrap();
        let mut playback = Playback::of(&path, &spaces, 3).unwrap();
        assert_eq!((playback.head.steps, playback.head.block_steps), (300, 100));
        let mut filled = Filled::new(Rollout::new(playback.shape(300)).unwrap());
        play(&mut playback, &mut filled).unwrap();
        let ends =
            |t: usize| (0..3).filter(|&n| filled.rollout.terminated()[[t, n]] | filled.rollout.truncated()[[t, n]] == 1).count();
        assert_eq!((ends(99), ends(299)), (3, 3));
        assert!(ends(199) < 3, "nothing was dropped there");
    }

    #[test]
    fn a_recording_that_is_damaged_or_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("steps");
        let env = CartPole::default();
        record(&env, 3, 90, &path);
        let (collector, _) = fixture(&env, 3);
        let spaces = spaces_of(&collector);
        let whole = fs::read(&path).unwrap();
        let mut filled = Filled::new(Rollout::new(collector.shape(30)).unwrap());
        let mut try_with = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            Playback::of(&path, &spaces, 3).and_then(|mut playback| play(&mut playback, &mut filled))
        };
        try_with(&whole).unwrap();
        for at in (0..whole.len()).step_by(13) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            // Only the environment's name may differ.
            let name = whole.windows(4).position(|window| window == b"test").unwrap();
            assert!(try_with(&bytes).is_err() || (name..name + 4).contains(&at), "byte {at}");
            let error = try_with(&whole[..at]).unwrap_err();
            assert!([1, 2].contains(&error.exit_code()) && error.to_string().contains("steps"), "{at} bytes: {error}");
        }
        fs::write(&path, &whole).unwrap();
        // Nothing is allocated for the environments that a head claims.
        let Ok((_, head)) = open_any(&path) else { panic!("it is whole") };
        let many_steps = Heading { steps: 1 << 20, block_steps: 1 << 20, ..head.clone() };
        for (claim, why) in [(Heading { n_envs: 1 << 24, ..head }, "ends too early"), (many_steps, "is damaged: its head")] {
            let claim = codec::encode(&claim).unwrap();
            fs::write(&path, [&MAGIC[..], &(claim.len() as u64).to_le_bytes(), &claim, &whole[100..]].concat()).unwrap();
            let error = open_any(&path).err().unwrap();
            assert!(error.to_string().contains(why), "{error}");
        }
        fs::write(&path, &whole).unwrap();
        let refused = |spaces, n_envs| Playback::of(&path, spaces, n_envs).err().unwrap();
        let error = refused(&spaces, 4);
        assert!(error.to_string().contains("use --envs 3") && error.exit_code() == 2, "{error}");
        let (other, _) = fixture(&Snake::new(Params { rows: 4, columns: 5, max_steps: 30 }), 3);
        let error = refused(&spaces_of(&other), 3);
        assert!(error.to_string().contains("4 elements of F32") && error.exit_code() == 2, "{error}");
    }

    #[test]
    fn the_replay_memory_of_a_checkpoint_is_played_as_transitions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replay.bin");
        let env = Snake::new(Params { rows: 4, columns: 5, max_steps: 30 });
        let (mut collector, policy) = fixture(&env, 2);
        let spaces = spaces_of(&collector);
        let RolloutShape { n_envs, obs_len, obs, actions, .. } = collector.shape(1);
        let of = |n_step| TransitionShape { n_envs, obs_len, obs, stack: 1, actions, n_step, gamma: 0.9 };
        let mut rollout = collector.rollout(40).unwrap();
        collector.collect(&policy, &mut rollout).unwrap();
        let saved = |n_step| {
            let mut replay = ReplayBuffer::new(of(n_step), 100).unwrap();
            let (d, a) = (obs_len, 4);
            for t in 0..40 {
                let mut step = rollout.step(t);
                let mut finals = (vec![0; 2 * d], vec![0; 2 * a]);
                for (i, &(at, n)) in rollout.final_at().iter().enumerate().filter(|(_, (at, _))| *at == t) {
                    assert_eq!(at, t);
                    finals.0[n * d..][..d].copy_from_slice(obs_bytes(rollout.final_obs().row(i, d)));
                    finals.1[n * a..][..a].copy_from_slice(&rollout.final_masks()[i * a..][..a]);
                }
                step.final_obs = ObsSlice::U8(&finals.0);
                step.masks = step.masks.map(|[masks, _]| [masks, &finals.1]);
                replay.push(rollout.obs_rows(2 * t..2 * t + 2), &step).unwrap();
            }
            replay.save(&mut File::create(&path).unwrap()).unwrap();
        };
        saved(3);
        let error = Playback::of(&path, &spaces, 2).err().unwrap();
        assert!(error.to_string().contains("sums of 3 rewards") && error.exit_code() == 2, "{error}");
        saved(1);
        let mut playback = Playback::of(&path, &spaces, 2).unwrap();
        let mut found = Filled::new(Rollout::new(playback.shape(40)).unwrap());
        play(&mut playback, &mut found).unwrap();
        let found = &found.rollout;
        assert_eq!(found.obs_rows(0..80), rollout.obs_rows(0..80));
        assert_eq!((found.actions(), found.rewards()), (rollout.actions(), rollout.rewards()));
        assert_eq!(found.terminated(), rollout.terminated());
        assert_eq!(found.final_at().len(), 80, "each step ends an episode");
        let ended = |t: usize, n: usize| rollout.final_at().iter().position(|&at| at == (t, n));
        for (i, &(t, n)) in found.final_at().iter().enumerate() {
            let next = match ended(t, n) {
                Some(at) => rollout.final_obs().row(at, obs_len),
                None => rollout.obs_rows(2 * t + 2 + n..2 * t + 3 + n),
            };
            assert_eq!(found.final_obs().row(i, obs_len), next, "step {t} of environment {n}");
        }
        fs::write(&path, &fs::read(&path).unwrap()[..500]).unwrap();
        assert_eq!(Playback::of(&path, &spaces, 2).err().unwrap().exit_code(), 2);
    }
}
