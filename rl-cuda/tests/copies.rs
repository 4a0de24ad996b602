//! Copies between host and device, synchronous and asynchronous.
#![allow(clippy::unwrap_used, reason = "tests")]

use rl_cuda::{Buffer, CpuAccess, Device, Error, PinnedSlab};

#[test]
fn what_goes_to_the_device_comes_back() {
    for device in Device::for_tests() {
        let (stream, second) = (device.stream().unwrap(), device.stream().unwrap());
        for n in [1usize, 31, 33, 65, 100_000] {
            let numbers: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
            let (mut a, mut b) = (Buffer::<f32>::zeros(&device, n).unwrap(), Buffer::<f32>::zeros(&device, n).unwrap());
            let mut back = vec![7.0; n];
            stream.download(&mut back, &a.view()).unwrap();
            assert!(back.iter().all(|&x| x == 0.0), "new memory holds zeros");
            for access in [CpuAccess::ReadWrite, CpuAccess::WriteOnly] {
                let mut slab = PinnedSlab::zeros(Some(&device), n, access).unwrap();
                slab.write().unwrap().copy_from_slice(&numbers);
                stream.upload_async(&a.view_mut(), &slab).unwrap();
                if access == CpuAccess::ReadWrite {
                    assert_eq!(slab.read().unwrap(), numbers, "reading disturbs no copy to the device");
                }
                // The write waits until the copy has read the old contents.
                slab.write().unwrap().fill(-1.0);
                stream.copy(&b.view_mut(), &a.view()).unwrap();
                second.wait(&stream.record().unwrap()).unwrap();
                let mut target = PinnedSlab::zeros(Some(&device), n, CpuAccess::ReadWrite).unwrap();
                second.download_async(&mut target, &b.view()).unwrap();
                assert_eq!(target.read().unwrap(), numbers, "{device}: {n}, {access:?}");
            }
            let event = stream.record().unwrap();
            event.synchronize().unwrap();
            assert!(event.is_complete().unwrap());
            assert!(event.seconds_to(&stream.record().unwrap()).unwrap() >= 0.0);
        }
    }
}

#[test]
fn parts_of_a_buffer_are_copied_alone_and_lengths_are_checked() {
    for device in Device::for_tests() {
        let stream = device.stream().unwrap();
        let mut buffer = Buffer::<u32>::zeros(&device, 10).unwrap();
        stream.upload(&buffer.view_mut().slice_mut(3..6), &[1, 2, 3]).unwrap();
        let mut part = [0; 4];
        stream.download(&mut part, &buffer.view().slice(2..6)).unwrap();
        assert_eq!(part, [0, 1, 2, 3]);
        assert!(matches!(stream.upload(&buffer.view_mut(), &[1]), Err(Error::Length { expected: 10, found: 1, .. })));
        assert!(matches!(stream.download(&mut part, &buffer.view()), Err(Error::Length { .. })));
        let short = PinnedSlab::<u32>::zeros(Some(&device), 9, CpuAccess::ReadWrite).unwrap();
        assert!(matches!(stream.upload_async(&buffer.view_mut(), &short), Err(Error::Length { .. })));
        let result = std::panic::catch_unwind(|| buffer.view().slice(8..11).len());
        assert!(result.is_err(), "beyond the end");
    }
}

#[test]
fn a_slab_waits_for_its_copy_in_one_stream_before_it_is_copied_in_another() {
    for device in Device::for_tests() {
        let (stream, second) = (device.stream().unwrap(), device.stream().unwrap());
        let (mut a, mut b) = (Buffer::<u32>::zeros(&device, 33).unwrap(), Buffer::<u32>::zeros(&device, 33).unwrap());
        stream.upload(&b.view_mut(), &[7; 33]).unwrap();
        let mut slab = PinnedSlab::zeros(Some(&device), 33, CpuAccess::ReadWrite).unwrap();
        slab.write().unwrap().fill(5);
        stream.upload_async(&a.view_mut(), &slab).unwrap();
        second.download_async(&mut slab, &b.view()).unwrap();
        assert_eq!(slab.read().unwrap(), [7; 33], "{device}");
        let mut uploaded = [0; 33];
        stream.download(&mut uploaded, &a.view()).unwrap();
        assert_eq!(uploaded, [5; 33], "{device}");
        // Dropped while a copy is in flight.
        second.download_async(&mut slab, &b.view()).unwrap();
        drop(slab);
        second.synchronize().unwrap();
    }
}

#[test]
fn a_stream_that_waited_may_be_read_from_another() {
    for device in Device::for_tests() {
        let (stream, second) = (device.stream().unwrap(), device.stream().unwrap());
        let mut a = Buffer::<u32>::zeros(&device, 65).unwrap();
        let mut b = Buffer::<u32>::zeros(&device, 65).unwrap();
        stream.upload(&a.view_mut(), &[3; 65]).unwrap();
        stream.copy(&b.view_mut(), &a.view()).unwrap();
        stream.synchronize().unwrap();
        let mut copied = [0; 65];
        second.download(&mut copied, &b.view()).unwrap();
        assert_eq!(copied, [3; 65], "{device}");
        // After an event, too.
        stream.upload(&a.view_mut(), &[4; 65]).unwrap();
        stream.copy(&b.view_mut(), &a.view()).unwrap();
        stream.record().unwrap().synchronize().unwrap();
        second.download(&mut copied, &b.view()).unwrap();
        assert_eq!(copied, [4; 65], "{device}");
    }
}
