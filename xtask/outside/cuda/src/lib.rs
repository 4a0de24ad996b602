//! Crate outside the workspace with an environment on a device.

pub mod corridor;

#[cfg(test)]
mod tests {
    use rl_cuda::{Buffer, CudaVecEnv, Device};
    use rl_envs::lanes::Lane;
    use rl_envs::{RandomActions, Steps, SyncVecEnv, VecEnv};

    use crate::corridor::{ENTRY, Params};

    #[test]
    fn a_device_holds_memory_or_its_absence_is_one_clear_message() {
        match Device::open(0) {
            Ok(device) => assert_eq!(Buffer::<f32>::zeros(&device, 33).unwrap().len(), 33),
            Err(error) => assert!(error.to_string().contains("CUDA"), "{error}"),
        }
    }

    #[test]
    fn an_environment_with_kernels_of_its_own_steps_on_a_device_as_on_the_host() {
        let devices = [Device::emulated(), Device::open(0)];
        if devices.iter().all(Result::is_err) {
            eprintln!("SKIPPED: neither a C++ compiler nor a GPU");
        }
        for device in devices.into_iter().flatten() {
            let on_device = CudaVecEnv::of_entry(&device, &ENTRY, 9).unwrap();
            let on_host = SyncVecEnv::new(9, Lane::<Params, 2, 1>::default());
            let run = |mut envs: Box<dyn VecEnv>| {
                let mut steps = Steps::new(&envs);
                let mut actions = RandomActions::new(3, 9, envs.action_space());
                envs.reset(3, &mut steps).unwrap();
                for _ in 0..250 {
                    actions.fill(steps.actions.as_mut_slice());
                    envs.step(&mut steps).unwrap();
                }
                (envs.save().unwrap(), format!("{steps:?}"))
            };
            assert_eq!(run(Box::new(on_device)), run(Box::new(on_host)), "{device}");
        }
    }
}
