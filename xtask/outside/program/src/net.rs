//! A network: a candle `Module` on slices of one parameter vector.

use std::borrow::Cow;

use candle_core::{Device, Result, Tensor};
use candle_nn::{Linear, Module};
use rl_agents::params::orthogonal;
use rl_agents::{Acted, Acting, Error, Layout, Policy, Scratch, Snapshot, Weights};
use rl_buffer::ObsSlice;

/// One observed number, 16 hidden units, two logits and a value.
#[derive(Clone)]
pub struct Net {
    pub layout: Layout,
    pub params: Vec<f32>,
    pub version: u64,
}

impl Net {
    pub fn new(seed: u64) -> Self {
        let mut layout = Layout::default();
        let weights = [("hidden", 16, 1), ("heads", 3, 16)].map(|(name, n_out, n_in)| {
            let weight = layout.push(format!("{name}.weight"), &[n_out, n_in]);
            layout.push(format!("{name}.bias"), &[n_out]);
            (weight, n_out, n_in)
        });
        let mut params = vec![0.0; layout.len()];
        for (i, (range, n_out, n_in)) in weights.into_iter().enumerate() {
            orthogonal(&mut params[range], n_out, n_in, 1.0, seed, i as u32);
        }
        Self { layout, params, version: 0 }
    }

    /// Takes the parameters of a snapshot.
    pub fn load(&mut self, snapshot: &Snapshot) -> std::result::Result<(), Error> {
        if snapshot.params.len() != self.params.len() {
            return Err(Error::Snapshot("its parameters are another network's".into()));
        }
        self.params.clone_from(&snapshot.params);
        self.version = snapshot.counters.version;
        Ok(())
    }

    /// The module on a tensor of all parameters.
    fn module(&self, params: &Tensor) -> Result<impl Module + use<>> {
        let tensors = self.layout.tensors().iter();
        let slices = tensors.map(|t| params.narrow(0, t.range.start, t.range.len())?.reshape(&t.shape[..]));
        let slices: Vec<Tensor> = slices.collect::<Result<_>>()?;
        let linear = |i: usize| Linear::new(slices[i].clone(), Some(slices[i + 1].clone()));
        Ok(candle_nn::seq().add(linear(0)).add_fn(|x| x.tanh()).add(linear(2)))
    }

    /// Logits (B, 2) and values (B).
    pub fn forward(&self, params: &Tensor, obs: ObsSlice<'_>) -> Result<(Tensor, Tensor)> {
        let ObsSlice::F32(obs) = obs else { candle_core::bail!("observations are f32") };
        let outputs = self.module(params)?.forward(&Tensor::from_slice(obs, (obs.len(), 1), &Device::Cpu)?)?;
        Ok((outputs.narrow(1, 0, 2)?, outputs.narrow(1, 2, 1)?.squeeze(1)?))
    }
}

impl Policy for Net {
    fn act(&self, acting: Acting<'_>, mut acted: Acted<'_>, _: &mut Scratch) -> std::result::Result<(), Error> {
        let params = Tensor::from_slice(&self.params, self.params.len(), &Device::Cpu)?;
        let (logits, values) = self.forward(&params, acting.obs)?;
        acted.values.copy_from_slice(&values.to_vec1()?);
        acted.choose(&acting, &logits.contiguous()?.flatten_all()?.to_vec1()?)
    }

    fn values(
        &self,
        obs: ObsSlice<'_>,
        _: &[u8],
        _: &[f32],
        values: &mut [f32],
        _: &mut Scratch,
    ) -> std::result::Result<(), Error> {
        if !values.is_empty() {
            let params = Tensor::from_slice(&self.params, self.params.len(), &Device::Cpu)?;
            values.copy_from_slice(&self.forward(&params, obs)?.1.to_vec1()?);
        }
        Ok(())
    }

    fn weights(&self) -> Weights<'_> {
        Weights { version: self.version, params: Cow::Borrowed(&self.params), obs: None }
    }
}
