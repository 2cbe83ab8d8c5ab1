//! The activation buffers of a batch, by name, with the borrows that operations need.

use super::super::Register;
use crate::model::config::ModelConfig;

/// One `[capacity, width]` buffer per register; the rows of the current batch are visible.
pub(super) struct Registers {
    buffers: [Vec<f32>; Register::COUNT],
    widths: [usize; Register::COUNT],
    tokens: usize,
}

impl Registers {
    pub(super) fn new(config: &ModelConfig, capacity: usize) -> Self {
        let widths = Register::widths(config);
        Self { buffers: widths.map(|width| vec![0.0; capacity * width]), widths, tokens: 0 }
    }

    /// Width of the widest register that is the input of a product.
    pub(super) fn widest_input(config: &ModelConfig) -> usize {
        let widths = Register::widths(config);
        let inputs = [
            Register::Normed,
            Register::Context,
            Register::QueryLatent,
            Register::OutputLow,
            Register::Rows,
            Register::StreamsNormed,
            Register::GateLow,
            Register::DecayLow,
            Register::Pair,
        ];
        let widest = inputs.map(|register| widths[register as usize]).into_iter().max();
        let streams = if config.hyper.is_some() { widths[Register::Residual as usize] } else { 0 };
        widest.unwrap_or(0).max(streams)
    }

    /// Bytes that `capacity` tokens will hold.
    pub(super) fn bytes(config: &ModelConfig, capacity: usize) -> usize {
        Register::widths(config).iter().sum::<usize>() * capacity * size_of::<f32>()
    }

    /// Fills all of them with NaN: an operation that reads what its batch has not written shows it.
    pub(super) fn spoil(&mut self) {
        self.buffers.iter_mut().for_each(|buffer| buffer.fill(f32::NAN));
    }

    /// Makes the rows of a batch of `tokens` visible.
    pub(super) fn resize(&mut self, tokens: usize) {
        self.tokens = tokens;
    }

    /// Values of a token.
    pub(super) fn width(&self, register: Register) -> usize {
        self.widths[register as usize]
    }

    fn visible(&self, register: Register) -> usize {
        self.tokens * self.widths[register as usize]
    }

    pub(super) fn get(&self, register: Register) -> &[f32] {
        &self.buffers[register as usize][..self.visible(register)]
    }

    pub(super) fn get_mut(&mut self, register: Register) -> &mut [f32] {
        let visible = self.visible(register);
        &mut self.buffers[register as usize][..visible]
    }

    /// Distinct registers at once, in the order asked.
    fn disjoint<const N: usize>(&mut self, registers: [Register; N]) -> [&mut [f32]; N] {
        let visible = registers.map(|register| self.visible(register));
        let buffers = self
            .buffers
            .get_disjoint_mut(registers.map(|register| register as usize))
            .expect("an operation names each register once");
        let mut index = 0;
        buffers.map(|buffer| {
            index += 1;
            &mut buffer[..visible[index - 1]]
        })
    }

    /// An input and an output.
    pub(super) fn pair(&mut self, from: Register, to: Register) -> (&[f32], &mut [f32]) {
        let [from, to] = self.disjoint([from, to]);
        (from, to)
    }

    /// Two inputs and an output.
    pub(super) fn two_inputs(
        &mut self,
        a: Register,
        b: Register,
        to: Register,
    ) -> (&[f32], &[f32], &mut [f32]) {
        let [a, b, to] = self.disjoint([a, b, to]);
        (a, b, to)
    }

    /// An input and two outputs.
    pub(super) fn three(
        &mut self,
        from: Register,
        first: Register,
        second: Register,
    ) -> (&[f32], &mut [f32], &mut [f32]) {
        let [from, first, second] = self.disjoint([from, first, second]);
        (from, first, second)
    }

    /// Three inputs and an output.
    pub(super) fn four(
        &mut self,
        a: Register,
        b: Register,
        c: Register,
        to: Register,
    ) -> (&[f32], &[f32], &[f32], &mut [f32]) {
        let [a, b, c, to] = self.disjoint([a, b, c, to]);
        (a, b, c, to)
    }

    /// Several outputs, in the order asked.
    pub(super) fn many(
        &mut self,
        registers: impl Iterator<Item = Register> + Clone,
    ) -> Vec<&mut [f32]> {
        let tokens = self.tokens;
        let mut outputs: Vec<(usize, &mut [f32])> = Vec::new();
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            let wanted = registers.clone().position(|register| register as usize == index);
            if let Some(place) = wanted {
                outputs.push((place, &mut buffer[..tokens * self.widths[index]]));
            }
        }
        outputs.sort_by_key(|(place, _)| *place);
        outputs.into_iter().map(|(_, output)| output).collect()
    }
}
