//! Acting allocates nothing in the steady state, an update nothing per minibatch.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rl_agents::{
    Acted, Acting, ActorCritic, Agent, Choice, Collector, Dqn, DqnConfig, Metrics, NetConfig, Policy, Ppo, PpoConfig, QNetwork,
    Scratch,
};
use rl_buffer::{ObsSlice, Rollout};
use rl_envs::{ActionSpace, Actions, Pool, cartpole::CartPole};

/// The system's allocator with a counter.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
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

fn count(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    f();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

// A single test, so that no other test runs at the same time and is counted.
#[test]
fn acting_and_minibatches_allocate_nothing() {
    let pool = Pool::new(1).unwrap();
    let mut collector = Collector::new(8, &CartPole::default(), &pool, 0).unwrap();
    let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &NetConfig::default(), 0).unwrap();

    let mut scratch = Scratch::default();
    let (obs, mut actions, mut log_probs, mut values) = ([0.1; 8 * 4], [0; 8], [0.0; 8], [0.0; 8]);
    let mut act = |step| {
        let choice = Choice::Sample { seed: 0, step, first_env: 0 };
        let actions = Actions::Discrete(&mut actions[..]);
        let acted = Acted { actions, log_probs: &mut log_probs, values: &mut values, states: &mut [] };
        policy.act(Acting { obs: ObsSlice::F32(&obs), masks: &[], choice, envs: &[] }, acted, &mut scratch).unwrap();
    };
    act(0);
    assert_eq!(count(|| (1..100).for_each(&mut act)), 0, "acting");

    let continuous = ActionSpace::Continuous { low: vec![-1.0; 3], high: vec![1.0; 3] };
    let gaussian = ActorCritic::new(collector.observation_space(), &continuous, &NetConfig::default(), 0).unwrap();
    let (mut scratch, mut actions) = (Scratch::default(), [0.0; 24]);
    let mut act = |step| {
        let choice = Choice::Sample { seed: 0, step, first_env: 0 };
        let actions = Actions::Continuous(&mut actions[..]);
        let acted = Acted { actions, log_probs: &mut log_probs, values: &mut values, states: &mut [] };
        gaussian.act(Acting { obs: ObsSlice::F32(&obs), masks: &[], choice, envs: &[] }, acted, &mut scratch).unwrap();
    };
    act(0);
    assert_eq!(count(|| (1..100).for_each(&mut act)), 0, "acting with continuous actions");

    // An update's own allocations (targets, the order of samples) do not depend on the number of minibatches.
    let mut rollout = collector.rollout(64).unwrap();
    collector.collect(&policy, &mut rollout).unwrap();
    let of_update = |n_epochs| {
        let config = PpoConfig { n_steps: 64, batch_size: 64, n_epochs, ..PpoConfig::default() };
        let mut agent = Ppo::new(policy.clone(), config, 8, 0).unwrap();
        agent.update(&rollout, 1.0, &pool).unwrap();
        count(|| drop(agent.update(&rollout, 1.0, &pool).unwrap()))
    };
    assert_eq!(of_update(1), of_update(10), "minibatches");

    // On a device, nothing but the metrics, and DQN's list of the episodes that ended.
    let of_metrics = |metrics: &Metrics| {
        count(|| {
            let mut copy = Metrics::default();
            metrics.iter().for_each(|(name, value)| copy.push(name, value));
        })
    };
    for device in &rl_cuda::Device::for_tests() {
        let mut metrics = Metrics::default();
        // Rollouts of the latest policy, and of an older one, which are sent to the device.
        for stale in [false, true] {
            let config = PpoConfig { n_steps: 64, batch_size: 64, n_epochs: 1, ..PpoConfig::default() };
            let mut agent = Ppo::new(policy.clone(), config, 8, 0).unwrap().on_device(device, rollout.shape()).unwrap();
            let mut rollout = Rollout::new_in(
                rollout.shape(),
                &agent.device().map_or_else(<dyn rl_buffer::Memory>::host, |device| device.memory(stale)),
            )
            .unwrap();
            // The second update of a kind captures a graph; the first one here is of the latest policy.
            for round in 0..5 {
                let acting: &dyn Policy = if stale { &policy } else { agent.policy() };
                collector.collect(acting, &mut rollout).unwrap();
                rollout.send().unwrap();
                assert_eq!(rollout.is_stale(agent.policy().weights().version), stale && round > 0);
                let of_update = count(|| metrics = agent.update(&rollout, 1.0, &pool).unwrap());
                let steady = round > if stale { 2 } else { 1 };
                assert!(!steady || of_update == of_metrics(&metrics), "{device}: {of_update} allocations, stale: {stale}");
            }
        }
        let (obs, actions) = (collector.observation_space(), collector.action_space());
        let config =
            DqnConfig { learning_starts: 0, prioritized: true, acted_priorities: true, n_steps: 3, ..DqnConfig::default() };
        let network = QNetwork::new(obs, actions, &NetConfig::default(), config.dueling, 0).unwrap();
        let mut agent = Dqn::new(network, config, obs, actions, 8, 0).unwrap().on_device(device).unwrap();
        let mut rollout = collector.rollout(2).unwrap();
        for round in 0..40 {
            collector.collect(agent.acting(1.0), &mut rollout).unwrap();
            let of_update = count(|| metrics = agent.update(&rollout, 1.0, &pool).unwrap());
            assert!(round < 4 || of_update <= of_metrics(&metrics) + 1, "{device}: {of_update} allocations");
        }
    }
}
