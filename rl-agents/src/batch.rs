//! Minibatches of a rollout, as tensors.

use candle_core::{Device, Tensor};
use ndarray::Array2;
use rl_buffer::{ActionBuffer, Rollout, returns};

use crate::{ActorCritic, Error};

/// What actor and critic learn, counted through from (0, 0) to (T - 1, N - 1).
pub(crate) struct Targets {
    pub(crate) advantages: Vec<f32>, // (T N)
    pub(crate) returns: Vec<f32>,    // (T N)
}

impl Targets {
    /// Generalized advantages, and returns as their sum with the values.
    pub(crate) fn new(policy: &ActorCritic, rollout: &Rollout, gamma: f32, lambda: f32) -> Result<Self, Error> {
        let final_values = policy.values(rollout.final_obs())?;
        let mut next_values = Array2::zeros(rollout.values.dim());
        rollout.next_values(&final_values, next_values.view_mut());
        let mut advantages = Array2::zeros(rollout.values.dim());
        returns::gae(&rollout.steps(next_values.view()), rollout.values.view(), gamma, lambda, advantages.view_mut());
        let returns = &advantages + &rollout.values;
        Ok(Self { advantages: advantages.into_iter().collect(), returns: returns.into_iter().collect() })
    }

    /// The share of the returns' variance that the values explain: 1 is all, 0 no more than a constant would, NaN where the
    /// returns do not vary.
    pub(crate) fn explained_variance(&self, rollout: &Rollout) -> f32 {
        let variance = |x: &mut dyn Iterator<Item = f64>| {
            let (n, sum, squares) = x.fold((0.0, 0.0, 0.0), |(n, s, q), x| (n + 1.0, s + x, q + x * x));
            squares / n - (sum / n) * (sum / n)
        };
        let all = variance(&mut self.returns.iter().map(|&r| f64::from(r)));
        let rest = variance(&mut self.returns.iter().zip(&rollout.values).map(|(&r, &v)| f64::from(r) - f64::from(v)));
        if all > 0.0 { (1.0 - rest / all) as f32 } else { f32::NAN }
    }
}

/// Some samples of a rollout.
pub(crate) struct Batch {
    pub(crate) obs: Tensor,           // (B, D) f32
    pub(crate) masks: Option<Tensor>, // (B, A) u8
    pub(crate) actions: Tensor,       // (B) u32
    pub(crate) log_probs: Tensor,     // (B)
    pub(crate) values: Tensor,        // (B)
    pub(crate) advantages: Tensor,    // (B)
    pub(crate) returns: Tensor,       // (B)
}

impl Batch {
    /// The samples `rows`, counted through from (0, 0).
    pub(crate) fn gather(policy: &ActorCritic, rollout: &Rollout, targets: &Targets, rows: &[u32]) -> Result<Self, Error> {
        let device = &Device::Cpu;
        let b = rows.len();
        let at = |row: &u32| *row as usize;
        let mut obs = Vec::with_capacity(b * policy.obs_len());
        for row in rows.iter().map(at) {
            policy.push_features(rollout.obs_rows(row..row + 1), &mut obs);
        }
        let floats = |all: &[f32]| Tensor::from_vec(rows.iter().map(|row| all[at(row)]).collect(), b, device);
        let ActionBuffer::Discrete(actions) = &rollout.actions else { return Err(Error::ContinuousActions) };
        let actions = actions.as_slice().unwrap_or_default();
        let masks = rollout.masks.as_ref().map(|masks| {
            let (all, a) = (masks.as_slice().unwrap_or_default(), policy.n_actions());
            let rows: Vec<u8> = rows.iter().map(at).flat_map(|row| &all[row * a..(row + 1) * a]).copied().collect();
            Tensor::from_vec(rows, (b, a), device)
        });
        Ok(Self {
            obs: Tensor::from_vec(obs, (b, policy.obs_len()), device)?,
            masks: masks.transpose()?,
            actions: Tensor::from_vec(rows.iter().map(|row| actions[at(row)]).collect(), b, device)?,
            log_probs: floats(rollout.log_probs.as_slice().unwrap_or_default())?,
            values: floats(rollout.values.as_slice().unwrap_or_default())?,
            advantages: floats(&targets.advantages)?,
            returns: floats(&targets.returns)?,
        })
    }

    /// Scales the advantages to mean 0 and (unbiased) standard deviation 1; equal ones become 0.
    pub(crate) fn normalize_advantages(&mut self) -> candle_core::Result<()> {
        let n = self.advantages.dim(0)? as f64;
        let centred = self.advantages.broadcast_sub(&self.advantages.mean_all()?)?;
        let deviation = (centred.sqr()?.sum_all()? / (n - 1.0))?.sqrt()?;
        self.advantages = centred.broadcast_div(&(deviation + 1e-8)?)?;
        Ok(())
    }
}

/// What the tests of the losses share.
#[cfg(test)]
pub(crate) mod fixture {
    use super::*;
    use crate::{Collector, NetConfig};
    use candle_core::{DType, Var};
    use rl_envs::{Purpose, Rng, SyncVecEnv, cartpole::CartPole};

    /// A policy, a rollout of 8 steps of 4 environments under it, and its targets.
    pub(crate) fn rollout() -> (ActorCritic, Rollout, Targets) {
        let mut collector = Collector::new(Box::new(SyncVecEnv::new(4, CartPole::default())), 1).unwrap();
        let net = NetConfig { hidden: vec![8, 5], ..NetConfig::default() };
        let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 1).unwrap();
        let mut rollout = collector.rollout(8).unwrap();
        collector.collect(&policy, &mut rollout).unwrap();
        let targets = Targets::new(&policy, &rollout, 0.99, 0.95).unwrap();
        (policy, rollout, targets)
    }

    impl Batch {
        /// The same in f64, and with masks that leave the action that was taken legal.
        fn to_f64(&self, masked: bool) -> Self {
            let double = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
            let actions: Vec<u32> = self.actions.to_vec1().unwrap();
            let rows = actions.iter().enumerate().flat_map(|(i, &a)| [0, 1].map(|b| u8::from(a == b || i % 3 > 0)));
            let mask = || Tensor::from_vec(rows.collect::<Vec<u8>>(), (actions.len(), 2), &Device::Cpu).unwrap();
            Self {
                obs: double(&self.obs),
                masks: masked.then(mask),
                actions: self.actions.clone(),
                log_probs: double(&self.log_probs),
                values: double(&self.values),
                advantages: double(&self.advantages),
                returns: double(&self.returns),
            }
        }
    }

    /// Compares the gradient of `loss` with central differences, in f64, away from the policy that acted.
    pub(crate) fn check_gradient(loss: impl Fn(&ActorCritic, &Tensor, &Batch) -> Tensor) {
        let (policy, rollout, targets) = rollout();
        let rows: Vec<u32> = (0..32).collect();
        let mut rng = Rng::new(5, 0, 0, Purpose::Init);
        let params: Vec<f64> = policy.params().iter().map(|&p| f64::from(p + 0.3 * rng.normal())).collect();
        for masked in [false, true] {
            let batch = Batch::gather(&policy, &rollout, &targets, &rows).unwrap().to_f64(masked);
            let at = |params: &[f64]| {
                let params = Tensor::from_slice(params, params.len(), &Device::Cpu).unwrap();
                loss(&policy, &params, &batch).to_scalar::<f64>().unwrap()
            };
            let variable = Var::from_slice(&params, params.len(), &Device::Cpu).unwrap();
            let grads = loss(&policy, &variable, &batch).backward().unwrap();
            let grads: Vec<f64> = grads.get(&variable).unwrap().to_vec1().unwrap();
            let norm = grads.iter().map(|g| g * g).sum::<f64>().sqrt();
            let step = 1e-6;
            for (i, &grad) in grads.iter().enumerate() {
                let mut moved = params.clone();
                moved[i] += step;
                let above = at(&moved);
                moved[i] -= 2.0 * step;
                let difference = (above - at(&moved)) / (2.0 * step);
                assert!((difference - grad).abs() < 1e-6 * norm.max(1.0), "parameter {i}: {grad} but {difference}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(advantages: &[f32]) -> Batch {
        let zeros = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap();
        let advantages = Tensor::from_slice(advantages, advantages.len(), &Device::Cpu).unwrap();
        let [obs, actions, log_probs, values, returns] = std::array::from_fn(|_| zeros.clone());
        Batch { obs, masks: None, actions, log_probs, values, advantages, returns }
    }

    #[test]
    fn normalized_advantages_equal_the_case_worked_out_by_hand() {
        let mut batch = batch(&[1.0, 2.0, 3.0]); // mean 2, unbiased standard deviation 1
        batch.normalize_advantages().unwrap();
        let got: Vec<f32> = batch.advantages.to_vec1().unwrap();
        assert!(got.iter().zip([-1.0, 0.0, 1.0]).all(|(g, e)| (g - e).abs() < 1e-6), "{got:?}");
    }

    #[test]
    fn equal_advantages_become_zero_and_not_nan() {
        let mut batch = batch(&[5.0; 4]);
        batch.normalize_advantages().unwrap();
        assert_eq!(batch.advantages.to_vec1::<f32>().unwrap(), [0.0; 4]);
    }
}
