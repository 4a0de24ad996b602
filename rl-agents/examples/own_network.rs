//! A custom network: a candle `Module` as a policy, and a loop that trains it.
//!
//! The loop is REINFORCE with a baseline (Williams, 1992). `cargo run --release --example own_network`. Parameters and loss are
//! f32; the module computes in the network's precision on its device: bf16 on a GPU, with `--features candle-cuda` and `-- 0`.

use std::borrow::Cow;

use candle_core::{DType, Device, Result as CandleResult, Tensor, Var};
use candle_nn::{Linear, Module, ops::log_softmax};
use rl_agents::optim::{Optimizer, Rule};
use rl_agents::params::orthogonal;
use rl_agents::{Acted, Acting, Collector, Error, Layout, Policy, Precision, Scratch, Targets, Weights, candle_device, evaluate};
use rl_buffer::ObsSlice;
use rl_envs::{Actions, Pool, SyncVecEnv, cartpole::CartPole};

/// 4 observed numbers, 64 hidden units, 2 logits and a value.
#[derive(Clone)]
struct Net {
    layout: Layout,
    params: Vec<f32>,
    version: u64,
    device: Device,
    precision: Precision,
}

impl Net {
    fn new(seed: u64, device: Device, precision: Precision) -> Self {
        let (mut layout, sizes) = (Layout::default(), [(64, 4), (3, 64)]);
        let weights = sizes.map(|(n_out, n_in)| layout.push(format!("{n_in}.weight"), &[n_out, n_in]));
        let biases = sizes.map(|(n_out, n_in)| layout.push(format!("{n_in}.bias"), &[n_out]));
        let mut params = vec![0.0; biases[1].end];
        for (i, (n_out, n_in)) in sizes.into_iter().enumerate() {
            orthogonal(&mut params[weights[i].clone()], n_out, n_in, 1.0, seed, i as u32);
        }
        Self { layout, params, version: 0, device, precision }
    }

    /// The module on a tensor of all parameters.
    fn module(&self, params: &Tensor) -> CandleResult<impl Module> {
        let slice = |i: usize| {
            let tensor = &self.layout.tensors()[i];
            params.narrow(0, tensor.range.start, tensor.range.len())?.reshape(&tensor.shape[..])
        };
        let (hidden, heads) = (Linear::new(slice(0)?, Some(slice(2)?)), Linear::new(slice(1)?, Some(slice(3)?)));
        Ok(candle_nn::seq().add(hidden).add_fn(|x| x.tanh()).add(heads))
    }

    /// Logits (B, 2) and values (B).
    fn forward(&self, params: &Tensor, obs: ObsSlice<'_>) -> CandleResult<(Tensor, Tensor)> {
        let ObsSlice::F32(obs) = obs else { candle_core::bail!("observations are f32") };
        let (obs, dtype) = (Tensor::from_slice(obs, (obs.len() / 4, 4), &self.device)?, self.precision.dtype());
        let outputs = self.module(&params.to_dtype(dtype)?)?.forward(&obs.to_dtype(dtype)?)?.to_dtype(DType::F32)?;
        Ok((outputs.narrow(1, 0, 2)?, outputs.narrow(1, 2, 1)?.squeeze(1)?))
    }
}

impl Policy for Net {
    fn act(&self, acting: Acting<'_>, mut acted: Acted<'_>, _: &mut Scratch) -> Result<(), Error> {
        let params = Tensor::from_slice(&self.params, self.params.len(), &self.device)?;
        let (logits, values) = self.forward(&params, acting.obs)?;
        acted.values.copy_from_slice(&values.to_vec1()?);
        acted.choose(&acting, &logits.contiguous()?.flatten_all()?.to_vec1()?)
    }

    fn values(&self, obs: ObsSlice<'_>, _: &[u8], _: &[f32], values: &mut [f32], _: &mut Scratch) -> Result<(), Error> {
        let params = Tensor::from_slice(&self.params, self.params.len(), &self.device)?;
        values.copy_from_slice(&self.forward(&params, obs)?.1.to_vec1()?);
        Ok(())
    }

    fn weights(&self) -> Weights<'_> {
        Weights { version: self.version, params: Cow::Borrowed(&self.params), obs: None }
    }
}

/// Mean return of 100 greedy episodes.
fn mean_return(policy: &dyn Policy) -> Result<f64, Error> {
    let episodes = evaluate(policy, &mut SyncVecEnv::new(100, CartPole::default()), 1)?;
    Ok(episodes.iter().map(|episode| episode.episode_return).sum::<f64>() / 100.0)
}

fn main() -> Result<(), Error> {
    let gpu = std::env::args().nth(1).map(|ordinal| candle_device(ordinal.parse().expect("the number of a GPU")));
    let device = gpu.unwrap_or(Ok(Device::Cpu))?;
    let precision = if device.is_cpu() { Precision::F32 } else { Precision::Bf16 };
    let (mut net, iterations) = (Net::new(0, device.clone(), precision), 150);
    let mut optimizer = Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-5 }, net.params.len());
    optimizer.set_precision(precision);
    let mut collector = Collector::new(16, &CartPole::default(), &Pool::new(2)?, 0)?;
    let mut rollout = collector.rollout(64)?;
    println!("before: mean return {:.1}", mean_return(&net)?);
    for _ in 0..iterations {
        collector.collect(&net, &mut rollout)?;
        let targets = Targets::new(&net, &rollout, rollout.rewards(), 0.98, 1.0)?;
        let b = targets.advantages.len();
        let Actions::Discrete(actions) = rollout.actions() else { return Err(Error::ActionKind) };
        let actions = Tensor::from_iter(actions.iter().copied(), &device)?;
        let params = Var::from_slice(&net.params, net.params.len(), &device)?;
        let (logits, values) = net.forward(&params, rollout.obs_rows(0..b))?;
        let log_probs = log_softmax(&logits, 1)?.gather(&actions.unsqueeze(1)?, 1)?.squeeze(1)?;
        let policy_loss = (log_probs * Tensor::from_slice(&targets.advantages, b, &device)?)?.mean_all()?.neg()?;
        let value_loss = (values - Tensor::from_slice(&targets.returns, b, &device)?)?.sqr()?.mean_all()?;
        let gradient = optimizer.gradient(&params, &(policy_loss + (value_loss * 0.5)?)?)?;
        optimizer.step(&mut net.params, &gradient, 5e-3, 0.5);
        net.version += 1;
    }
    println!("after {} env steps: mean return {:.1}", iterations * rollout.len(), mean_return(&net)?);
    Ok(())
}
