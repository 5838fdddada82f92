//! Compressed files and boot catalogues with false records: each is an error that names the position.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says so by failing"
)]

mod support;

use support::{FREE, Image, Rec, SECTOR, field, find, starts};

#[test]
fn compressed_files() {
    let zf = |size: u32| {
        field(
            b"ZF",
            &[&b"pz\x04\x0f"[..], &support::both32(size)].concat(),
        )
    };
    let header = |size: u32, pointers: &[u32]| {
        let mut bytes = vec![0x37, 0xe4, 0x53, 0x96, 0xc9, 0xdb, 0xd6, 0x07];
        bytes.extend(size.to_le_bytes());
        bytes.extend([4, 15, 0, 0]);
        bytes.extend(pointers.iter().flat_map(|pointer| pointer.to_le_bytes()));
        bytes
    };
    let why = |size: u32, stored: &[u8]| {
        let mut image = Image::new(30);
        let record = Rec::file(b"Z", FREE, stored.len() as u32);
        image
            .rock(&[record.with(&[zf(size)])])
            .put_block(FREE, stored);
        let iso = image.open().unwrap();
        let file = find(&iso, "z");
        assert_eq!(file.size, size.into());
        let mut buf = [1; 100];
        let read = iso.read_at(&file, 0, &mut buf);
        read.map(|_| buf).map_err(|error| error.to_string())
    };
    assert_eq!(why(100, &header(100, &[24, 24])).unwrap(), [0; 100]);
    starts(
        &why(100, &header(99, &[24, 24])).unwrap_err(),
        "zisofs header at byte 49152: it does not agree",
    );
    starts(
        &why(u32::MAX, &header(u32::MAX, &[24, 24])).unwrap_err(),
        "zisofs header at byte 49152: the file is too short",
    );
    starts(&why(100, b"").unwrap_err(), "zisofs header");
    for (start, end) in [(25, 24), (0, 24), (24, 4000), (u32::MAX, 24)] {
        let error = why(100, &header(100, &[start, end])).unwrap_err();
        starts(
            &error,
            &format!(
                "zisofs block at byte {}: block 0 goes",
                49152 + u64::from(start)
            ),
        );
    }
    let mut garbage = header(100, &[24, 40]);
    garbage.resize(40, b'x');
    starts(
        &why(100, &garbage).unwrap_err(),
        "zisofs block at byte 49176: block 0",
    );

    let version_2 = |size: u64| {
        let mut field = field(b"ZF", &[&b"PZ\x06\x0f"[..], &size.to_le_bytes()].concat());
        field[3] = 2;
        field
    };
    let mut image = Image::new(30);
    let record = Rec::file(b"Z", FREE, 2048).with(&[version_2(u64::MAX)]);
    image.rock(&[record]);
    let iso = image.open().unwrap();
    assert_eq!(find(&iso, "z").size, u64::MAX);
    let file = find(&iso, "z");
    let error = iso
        .read_at(&file, u64::MAX - 5, &mut [0; 9])
        .unwrap_err()
        .to_string();
    starts(&error, "zisofs header at byte 49152: the file is too short");
}

#[test]
fn boot_catalogues() {
    let with = |catalogue: &[u8]| {
        let mut image = Image::new(30);
        image.rock(&[]);
        image.put(17 * SECTOR, b"\0CD001\x01EL TORITO SPECIFICATION");
        image.put(17 * SECTOR + 71, &25_u32.to_le_bytes());
        image.put(18 * SECTOR, b"\xffCD001\x01");
        image.put_block(25, catalogue);
        let iso = image.open().unwrap();
        assert_eq!(
            iso.info().boot.len(),
            iso.boot_images().map_or(0, |images| images.len())
        );
        iso.boot_images().map_err(|error| error.to_string())
    };
    let mut sound = vec![0; 64];
    sound[0] = 1;
    sound[28..32].copy_from_slice(&[0xaa, 0x55, 0x55, 0xaa]);
    sound[32] = 0x88;
    sound[38..44].copy_from_slice(&[4, 0, 26, 0, 0, 0]);
    sound[28..30].copy_from_slice(&(0_u16.wrapping_sub(1).wrapping_sub(0xaa55)).to_le_bytes());
    let images = with(&sound).unwrap();
    assert_eq!(
        (images.len(), images[0].block, images[0].load_sectors),
        (1, 26, 4)
    );
    let mut wrong = sound.clone();
    wrong[5] = 1;
    starts(
        &with(&wrong).unwrap_err(),
        "boot catalogue at byte 51200: the checksum",
    );
    starts(
        &with(&[]).unwrap_err(),
        "boot catalogue at byte 51200: no validation entry",
    );
    let mut odd = sound;
    odd.resize(96, 0);
    odd[64] = 0x77;
    starts(
        &with(&odd).unwrap_err(),
        "boot catalogue at byte 51264: an entry of the unknown kind 0x77",
    );
}
