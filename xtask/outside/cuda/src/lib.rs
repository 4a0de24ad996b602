//! Crate outside the workspace that depends on rl-cuda alone.

#[cfg(test)]
mod tests {
    use rl_cuda::{Buffer, Device};

    #[test]
    fn a_device_holds_memory_or_its_absence_is_one_clear_message() {
        match Device::open(0) {
            Ok(device) => assert_eq!(Buffer::<f32>::zeros(&device, 33).unwrap().len(), 33),
            Err(error) => assert!(error.to_string().contains("CUDA"), "{error}"),
        }
    }
}
