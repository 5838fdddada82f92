//! Makes the code and data of stubs for one library at one address.

use goanna_sys::stub;

use super::mount_points::MountPoints;
use super::sites::{SITE, Site};

/// The values that stubs compare with; the same in all processes of a run.
#[derive(Debug)]
pub struct Constants {
    /// A call whose r9 is the next instruction's address XOR this passes the filter.
    pub key: u64,
    /// The bytes by which the monitor recognises an area.
    pub magic: [u64; 2],
    /// The devices of the run-time directory, of memfds, and of /proc.
    pub devices: [u64; 3],
    /// Stubs count the calls that they answer.
    pub counts: bool,
    /// Notified calls of a process before anything is patched in it.
    pub calls_before: u32,
    /// Notified calls of all processes of the run before it analyses a library.
    pub calls_of_run_before: u32,
    /// Calls of patched sites that come to the monitor all the same, before a process gets the map of attributes.
    pub map_after: u32,
    /// Writes to files of a store from patched sites, before a process gets an area for writes.
    pub writes_after: u32,
    /// Libraries are analysed at once, and not while the process continues.
    pub examines_at_once: bool,
    /// [`hash`] of each name that leads from the host into a mount, or into /proc.
    pub names: Vec<u64>,
    /// The inode of the only host directory that mount points are in, where no other directory can take its place; else 0.
    pub list_inode: u64,
    /// Whether mount points exist on the host.
    pub mount_points: MountPoints,
}

/// What the stub computes of a component of a path. Other names with the same hash only cost time.
pub fn hash(name: &[u8]) -> u64 {
    name.iter()
        .fold(0u64, |hash, &byte| hash.rotate_left(7) ^ u64::from(byte))
}

/// The address of the map of attributes in a process, the number of the run in the map, the ID of the mount, the address of the area for writes, and the
/// process ID: the words at [`stub::Layout::map`].
pub type MapWords = [u64; 5];

/// The common code and its data.
pub fn common(constants: &Constants, counter: u64, flags: u8, map: MapWords) -> Vec<u8> {
    let layout = stub::layout();
    let mut code = stub::common().to_vec();
    let mut put = |at: usize, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Some(place) = code.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(&bytes);
        }
    };
    put(layout.magic, &constants.magic);
    put(layout.key, &[constants.key]);
    put(layout.devices, &constants.devices);
    put(layout.names, &constants.names);
    put(layout.list_inode, &[constants.list_inode]);
    put(layout.counter, &[counter]);
    put(layout.flags, &[flags.into()]);
    put(layout.map, &map);
    code
}

/// The distance from `from` to `to`, where a jump can have it.
fn distance(from: u64, to: u64) -> Option<[u8; 4]> {
    let distance = to.wrapping_sub(from).cast_signed();
    i32::try_from(distance).ok().map(i32::to_le_bytes)
}

/// The code at `here` for `site` of a library at `base`, whose area is at `area`.
pub fn site(site: &Site, base: u64, area: u64, here: u64) -> Option<Vec<u8>> {
    let parts = stub::site_layout();
    let mut code = stub::site().to_vec();
    let mut put = |end: usize, value: [u8; 4]| {
        code.get_mut(end - 4..end)?.copy_from_slice(&value);
        Some(())
    };
    let back = base + site.at + SITE;
    put(
        parts.return_address,
        distance(here + parts.return_address as u64, back)?,
    )?;
    put(parts.kind, site.kind.to_le_bytes())?;
    put(parts.number, site.nr.to_le_bytes())?;
    let enter = area + stub::layout().enter as u64;
    put(parts.jump, distance(here + parts.jump as u64, enter)?)?;
    Some(code)
}

/// The five bytes at `site` that jump to `here`.
pub fn jump(site: u64, here: u64) -> Option<[u8; 5]> {
    let [a, b, c, d] = distance(site + 5, here)?;
    Some([0xe9, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_jumps_lead_where_they_should() {
        assert_ne!(hash(b"amino"), hash(b"amin"));
        assert_ne!(hash(b"a"), 0);
        assert_eq!(jump(0x1000, 0x2000), Some([0xe9, 0xfb, 0x0f, 0, 0]));
        assert_eq!(jump(0x2000, 0x1000), Some([0xe9, 0xfb, 0xef, 0xff, 0xff]));
        assert_eq!(jump(0, 1 << 40), None);
    }
}
