//! EME with AES-256 (Halevi and Rogaway, "A Parallelizable Enciphering Mode", 2003): encrypts up to 2048 bytes as one block, so that
//! each bit of the result depends on each bit of the input.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};

/// Bytes of an AES block, and of a tweak.
pub const BLOCK: usize = 16;

/// The most blocks that EME is defined for.
const MAX_BLOCKS: usize = 128;

/// EME under one key.
pub struct Eme {
    cipher: Aes256,
    /// 2 E(0): the mask of the first block. The next ones are its multiples.
    mask: [u8; BLOCK],
}

impl Eme {
    /// EME under `key`.
    pub fn new(key: &[u8; 32]) -> Self {
        let cipher = Aes256::new(&Array::from(*key));
        let mut zero = Block::default();
        cipher.encrypt_block(&mut zero);
        Self {
            mask: doubled(zero.into()),
            cipher,
        }
    }

    /// Encrypts `data` in place. False, with nothing changed, unless it is 1 to 128 whole blocks.
    #[must_use]
    pub fn encrypt(&self, tweak: &[u8; BLOCK], data: &mut [u8]) -> bool {
        self.transform(tweak, data, |cipher, block| cipher.encrypt_block(block))
    }

    /// Decrypts `data` in place. False, with nothing changed, unless it is 1 to 128 whole blocks.
    #[must_use]
    pub fn decrypt(&self, tweak: &[u8; BLOCK], data: &mut [u8]) -> bool {
        self.transform(tweak, data, |cipher, block| cipher.decrypt_block(block))
    }

    /// Both directions: they differ only in the direction of AES.
    fn transform(
        &self,
        tweak: &[u8; BLOCK],
        data: &mut [u8],
        aes: impl Fn(&Aes256, &mut Block),
    ) -> bool {
        if !data.len().is_multiple_of(BLOCK) || !(1..=MAX_BLOCKS).contains(&(data.len() / BLOCK)) {
            return false;
        }
        let apply = |block: &mut [u8; BLOCK]| {
            let mut aes_block = Block::from(*block);
            aes(&self.cipher, &mut aes_block);
            *block = aes_block.into();
        };
        let (blocks, _) = data.as_chunks_mut::<BLOCK>();
        self.mask_and_apply(blocks, false, &apply);
        let mut sum = *tweak;
        blocks.iter().for_each(|block| xor(&mut sum, block));
        let mut mixed = sum;
        apply(&mut mixed);
        let mut mask = sum;
        xor(&mut mask, &mixed);
        // The first block is set so that the sum of all blocks is `mixed`.
        let mut first = mixed;
        xor(&mut first, tweak);
        let Some((head, rest)) = blocks.split_first_mut() else {
            return false;
        };
        for block in rest {
            mask = doubled(mask);
            xor(block, &mask);
            xor(&mut first, block);
        }
        *head = first;
        self.mask_and_apply(blocks, true, &apply);
        true
    }

    fn mask_and_apply(
        &self,
        blocks: &mut [[u8; BLOCK]],
        apply_first: bool,
        apply: &impl Fn(&mut [u8; BLOCK]),
    ) {
        let mut mask = self.mask;
        for block in blocks {
            if apply_first {
                apply(block);
                xor(block, &mask);
            } else {
                xor(block, &mask);
                apply(block);
            }
            mask = doubled(mask);
        }
    }
}

fn xor(to: &mut [u8; BLOCK], with: &[u8; BLOCK]) {
    to.iter_mut().zip(with).for_each(|(to, with)| *to ^= with);
}

/// Twice `value` in GF(2^128), little endian, without a branch on a secret.
fn doubled(value: [u8; BLOCK]) -> [u8; BLOCK] {
    let value = u128::from_le_bytes(value);
    let carry = (value >> 127) * 0x87;
    ((value << 1) ^ carry).to_le_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    /// The vectors of IEEE P1619's draft of EME-32-AES: 512 zeros, encrypted and decrypted under a key and a tweak of zeros.
    #[test]
    fn published_vectors() {
        let eme = Eme::new(&[0; 32]);
        let [encrypted, decrypted] = [
            include_str!("vectors/eme32_encrypted.hex"),
            include_str!("vectors/eme32_decrypted.hex"),
        ]
        .map(hex);
        let mut data = vec![0; 512];
        assert!(eme.encrypt(&[0; 16], &mut data));
        assert_eq!(data, encrypted);
        assert!(eme.decrypt(&[0; 16], &mut data));
        assert_eq!(data, [0; 512]);
        assert!(eme.decrypt(&[0; 16], &mut data));
        assert_eq!(data, decrypted);
    }

    #[test]
    fn one_block() {
        let eme = Eme::new(&[0; 32]);
        let mut data = [0; 16];
        assert!(eme.encrypt(&[0; 16], &mut data));
        assert_eq!(data.to_vec(), hex("f1b9ce8ca15a4ba9fb476905434b9fd3"));
    }

    #[test]
    fn all_lengths_come_back_and_others_are_refused() {
        let eme = Eme::new(&[3; 32]);
        for len in (16..=2048).step_by(16) {
            let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut changed = data.clone();
            assert!(eme.encrypt(&[9; 16], &mut changed));
            assert_ne!(changed, data);
            assert!(eme.decrypt(&[9; 16], &mut changed));
            assert_eq!(changed, data);
        }
        for len in [0, 1, 15, 17, 2064] {
            assert!(!eme.encrypt(&[0; 16], &mut vec![0; len]));
        }
    }
}
