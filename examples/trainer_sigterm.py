#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains with the Trainer of transformers, and has the whole job saved at the end of the step in which SIGTERM comes."""

import argparse
import signal

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

import brumate


class CheckpointOnSigterm(TrainerCallback):
    """Saves the job instead of the model: nothing has to be loaded again, and no step is lost."""

    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGTERM, self.note_signal)

    def note_signal(self, _signal, _frame):
        self.asked = True

    def on_step_end(self, args, state, control, **kwargs):
        if not self.asked:
            return
        self.asked = False
        try:
            brumate.checkpoint(leave_running=False)  # returns in the restored program
            print(f"restored at step {state.global_step}", flush=True)
        except brumate.BrumateError as error:
            print(f"ends without a checkpoint: {error}", flush=True)
            control.should_training_stop = True


class Numbers(torch.utils.data.Dataset):
    """Sentences of random words, so that nothing has to be fetched."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        words = torch.randint(0, 1000, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": int(words[0]) % 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    options = parser.parse_args()
    set_seed(1)  # every run prints the same losses, so that one sees what a restore keeps
    config = BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256)
    arguments = TrainingArguments(output_dir="trained", max_steps=options.steps, logging_steps=50, save_strategy="no",
                                  report_to="none", disable_tqdm=True)
    trained = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Numbers(),
                      callbacks=[CheckpointOnSigterm()]).train()
    print(f"trained {trained.global_step} steps, mean loss {trained.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
