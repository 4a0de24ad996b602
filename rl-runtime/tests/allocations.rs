//! In the steady state, the pipeline itself allocates nothing.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rl_agents::{ActorCritic, Agent, Collector, Metrics, NetConfig, Policy, Snapshot};
use rl_buffer::{Memory, Rollout, RolloutShape};
use rl_envs::{Pool, cartpole::CartPole};
use rl_runtime::Error;
use rl_runtime::Mode;
use rl_runtime::pipeline::{Collect, Filled, Flow, Pipeline};
use rl_runtime::profile::{Profile, Track};

/// Counting wrapper of the system allocator.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Collector that fills rollouts without allocating.
struct Plain(Rollout);

impl Collect for Plain {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, _: &Track) -> Result<(), Error> {
        // Make both sides wait at first, because the first wait on a channel allocates an entry.
        if learnt < 20 {
            std::thread::sleep(Duration::from_millis(5));
        }
        filled.rollout.columns().steps.rewards.fill(policy.weights().params[0]);
        filled.learnt.fill(learnt);
        Ok(())
    }

    fn shape(&self, _: usize) -> RolloutShape {
        self.0.shape()
    }
}

/// Agent that never changes.
struct Still(ActorCritic);

impl Agent for Still {
    fn policy(&self) -> &dyn Policy {
        &self.0
    }

    fn layout(&self) -> &rl_agents::Layout {
        self.0.layout()
    }

    fn update(&mut self, _: &Rollout, _: f32, _: &Pool) -> Result<Metrics, rl_agents::Error> {
        Ok(Metrics::default())
    }

    fn save(&self) -> Result<Snapshot, rl_agents::Error> {
        Ok(self.0.weights().into())
    }

    fn load(&mut self, snapshot: &Snapshot) -> Result<(), rl_agents::Error> {
        self.0.load(snapshot)
    }
}

// A single test, so that no concurrent one adds to the count.
#[test]
fn rollouts_and_policies_go_round_without_allocating() {
    let pool = Pool::new(1).unwrap();
    let collector = Collector::new(4, &CartPole::default(), &pool, 0).unwrap();
    let net = NetConfig { normalize_obs: true, ..NetConfig::default() };
    let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 0).unwrap();
    for mode in [Mode::Sync, Mode::Overlapped { max_lag: 1 }, Mode::Overlapped { max_lag: 4 }] {
        let rollout = collector.rollout(16).unwrap();
        let mut pipeline = Pipeline::new(mode, vec![Plain(rollout)], 16, &<dyn Memory>::host(), &Profile::new(false)).unwrap();
        let (param, mut agent) = (policy.weights().params[0], Still(policy.clone()));
        let (mut i, mut before) = (0, 0);
        let driven = pipeline.drive(&mut agent, u64::MAX, |filled, _| {
            if (40..60).contains(&i) {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(filled.rollout.rewards()[[15, 3]], param);
            i += 1;
            match i {
                100 => before = ALLOCATIONS.load(Ordering::Relaxed),
                1000 => assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{mode:?}"),
                _ => {}
            }
            Ok(if i < 1000 { Flow::Continue } else { Flow::Stop })
        });
        driven.unwrap();
    }
}
