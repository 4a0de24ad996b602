//! In the steady state, the pipeline itself allocates nothing.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rl_agents::{ActorCritic, Collector, NetConfig, Policy};
use rl_buffer::Rollout;
use rl_envs::{Pool, cartpole::CartPole};
use rl_runtime::Error;
use rl_runtime::pipeline::{Collect, Filled, Mode, Pipeline};
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
        filled.rollout.rewards.fill(policy.weights().params[0]);
        filled.learnt.fill(learnt);
        Ok(())
    }

    fn rollout(&self, _: usize) -> Result<Rollout, Error> {
        Ok(self.0.clone())
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
        let mut pipeline = Pipeline::new(mode, Plain(rollout), 16, &Profile::new(false)).unwrap();
        (0..pipeline.n_ahead()).for_each(|_| pipeline.order(Box::new(policy.clone()), 0));
        let mut turn = |i| {
            if (40..60).contains(&i) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let filled = pipeline.next(&policy, i).unwrap();
            assert_eq!(filled.rollout.rewards[[15, 3]], policy.weights().params[0]);
            pipeline.give_back(filled, &policy, i + 1).unwrap();
        };
        (0..100).for_each(&mut turn);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (100..1000).for_each(&mut turn);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{mode:?}");
    }
}
