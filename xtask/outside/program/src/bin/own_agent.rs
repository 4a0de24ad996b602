//! Trains the algorithm: `own_agent RUN_DIR STEPS MAX_LAG`.
//!
//! A run that exists is resumed. At the end, its policy is evaluated and watched.

use std::error::Error;
use std::path::Path;

use own_program::{
    net::Net,
    reinforce::{Reinforce, ReinforceConfig},
    walk::Walk,
};
use rl_agents::EvalConfig;
use rl_envs::Pool;
use rl_envs::catalog::Entry;
use rl_runtime::Algo;
use rl_runtime::checkpoint::{self, Checkpoint};
use rl_runtime::config::Layers;
use rl_runtime::evaluation::evaluate_policy;
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::Training;
use rl_runtime::watch::{self, Seen};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, steps, max_lag] = &args[..] else { return Err("usage: own_agent RUN_DIR STEPS MAX_LAG".into()) };
    let entry = Entry::of::<Walk>("walk", "reach the right end of a line");
    let mut layers = Layers::default();
    ["n_envs=4", "a2c.n_steps=16", "eval_episodes=4", "pipeline=overlapped"].iter().for_each(|s| layers.add_assignment(s));
    [format!("steps={steps}"), format!("max_lag={max_lag}")].iter().for_each(|s| layers.add_assignment(s));
    let config = layers.resolve(&entry, Algo::A2C)?;

    let agent = Box::new(Reinforce::new(Net::new(config.run.seed), ReinforceConfig::default()));
    let mut training = Training::builder(&config, &entry).agent(agent).build()?;
    let run = match Path::new(dir) {
        dir if dir.exists() => RunDir::open(dir)?.0,
        dir => RunDir::create(Some(dir), &config, "cpu")?,
    };
    if let Some(newest) = checkpoint::list(&run.checkpoints())?.last() {
        training.load(Checkpoint::load(newest, training.agent().layout())?)?;
    }
    training.run(&run, &mut |_| ())?;

    let policy = training.agent().policy();
    if let Some(result) = evaluate_policy(policy, &entry, 8, &EvalConfig::new(1), &Pool::new(2)?)? {
        println!("mean return {}, mean length {}", result.return_mean, result.length_mean);
    }
    let mut frames = 0;
    watch::play(policy, &entry, 1, &EvalConfig::new(1), &mut |seen| frames += usize::from(matches!(seen, Seen::Step { .. })))?;
    println!("watched {frames} frames");
    Ok(())
}
