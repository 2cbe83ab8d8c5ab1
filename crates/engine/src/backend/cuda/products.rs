//! Products of a batch's registers with dense matrices: of few tokens as they are, of many with activations that were
//! split for tensor cores, once for all matrices that share them.

use cuda::launch::{self, SplitTokens, StepInput, StepJob};
use cuda::{CudaError, Matrix, Span};

use super::CudaBackend;

impl CudaBackend {
    /// Products of one input, as the size of the batch asks for.
    pub(super) fn products(
        &self,
        x: Span<f32>,
        jobs: &[(Matrix, Span<f32>)],
        add: bool,
    ) -> Result<(), CudaError> {
        if self.single {
            let matrices = jobs.iter().map(|job| &job.0);
            if launch::step_serves(self.stream.device(), matrices) {
                return self.step_products(x, jobs, add);
            }
            return jobs
                .chunks(launch::JOBS)
                .try_for_each(|jobs| launch::linear(&self.stream, x, self.tokens, jobs, add));
        }
        let split = self.split_input(x, jobs.iter().map(|job| &job.0))?;
        launch::tile_products(&self.stream, x, self.tokens, jobs, add, split.as_ref())
    }

    /// Products of a step that a fused kernel serves.
    fn step_products(
        &self,
        x: Span<f32>,
        jobs: &[(Matrix, Span<f32>)],
        add: bool,
    ) -> Result<(), CudaError> {
        let job = |&(matrix, out): &(Matrix, Span<f32>)| match add {
            true => StepJob::Add(matrix, out),
            false => StepJob::Store(matrix, out),
        };
        let jobs: Vec<StepJob> = jobs.iter().map(job).collect();
        jobs.chunks(launch::STEP_JOBS).try_for_each(|jobs| {
            launch::step_linear(&self.stream, self.tokens, &StepInput::Plain { x }, jobs)
        })
    }

    /// Splits the batch's input of products with `matrices`, in the form that serves most, if one of them takes it.
    pub(super) fn split_input<'a>(
        &self,
        x: Span<f32>,
        matrices: impl IntoIterator<Item = &'a Matrix>,
    ) -> Result<Option<SplitTokens>, CudaError> {
        self.split_rows(x, self.tokens, matrices)
    }

    /// The same of `tokens` rows.
    pub(super) fn split_rows<'a>(
        &self,
        x: Span<f32>,
        tokens: usize,
        matrices: impl IntoIterator<Item = &'a Matrix>,
    ) -> Result<Option<SplitTokens>, CudaError> {
        let device = self.stream.device();
        let matrices: Vec<&Matrix> = matrices.into_iter().collect();
        let Some(form) = launch::split_form_of(device, matrices.iter().copied()) else {
            return Ok(None);
        };
        let (split, shape) =
            (self.buffers.split_tokens(0, form, &self.sizes), (tokens, matrices[0].columns()));
        launch::split(&self.stream, x, None, shape, None, &split)?;
        Ok(Some(split))
    }
}
