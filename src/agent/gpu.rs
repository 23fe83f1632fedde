//! What GPUs this node has, asked of NVML.
//!
//! The library is opened at run time; a node without a driver is normal and is said once, in words, in the inventory.
//! One GPU that does not answer is left out and named in the note; it never hides the others. Nothing here changes a GPU.

use crate::api::nodes::Gpu;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;

/// What NVML said: the GPUs in index order, the driver's version, and why something is missing.
///
/// May be partial. `note` is for people and goes into the inventory as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpus {
    pub gpus: Vec<Gpu>,
    /// Of the kernel's driver, as NVML says it.
    pub driver: Option<String>,
    /// None when every GPU answered.
    pub note: Option<String>,
}

/// Asks once. `library` names another NVML than the system's (a path; tests use a stub).
///
/// Blocks, longest where a driver has to be woken. Called at the agent's start; a GPU
/// that is added later is seen after a restart.
pub fn inventory(library: Option<&OsStr>) -> Gpus {
    let opened = match library {
        Some(path) => Nvml::builder().lib_path(path).init(),
        None => Nvml::init(),
    };
    match opened {
        Ok(nvml) => ask(&nvml),
        Err(NvmlError::LibloadingError(_)) => {
            Gpus { note: Some("no driver: the NVML library is not on this node".to_owned()), ..Gpus::default() }
        }
        Err(error) => Gpus { note: Some(format!("NVML does not start: {error}")), ..Gpus::default() },
    }
}

/// Count, then each GPU by index, which is NVML's order and not that of `CUDA_VISIBLE_DEVICES`; the UUID is the stable
/// name.
fn ask(nvml: &Nvml) -> Gpus {
    let mut found = Gpus { driver: nvml.sys_driver_version().ok(), ..Gpus::default() };
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => {
            found.note = Some(format!("NVML does not count the GPUs: {error}"));
            return found;
        }
    };
    let mut silent = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| describe(index, &device)) {
            Ok(gpu) => found.gpus.push(gpu),
            Err(error) => silent.push(format!("GPU {index}: {error}")),
        }
    }
    if count == 0 {
        found.note = Some("the driver reports no GPU".to_owned());
    } else if !silent.is_empty() {
        found.note = Some(silent.join("; "));
    }
    found
}

/// Bytes of memory are the board's total, whatever is in use.
fn describe(index: u32, device: &Device<'_>) -> Result<Gpu, NvmlError> {
    Ok(Gpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        memory_bytes: device.memory_info()?.total,
        pci: device.pci_info()?.bus_id,
        // Absent on single-socket machines and old drivers: that is not a fault of the GPU.
        numa_node: device.numa_node_id().ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_driver_says_so_and_has_no_gpus() {
        let found = inventory(Some(OsStr::new("/nonexistent/libnvidia-ml.so.1")));
        assert!(found.gpus.is_empty());
        assert!(found.note.expect("a note").starts_with("no driver"));
    }
}
